"""Pages in a real browser: one whose origin `cors` names reads chats and streams, another reads nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal

import orjson
import pytest

from phasewise.fake_engine.fleet import running_engines
from tests.gateway.harness import chat_body, events_of, running_gateway
from tests.raw_server import raw_server

ALLOWED, OTHER = "allowed.example", "other.example"
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--no-proxy-server",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    f"--host-resolver-rules=MAP {ALLOWED} 127.0.0.1, MAP {OTHER} 127.0.0.1",
)  # fmt: skip

PAGE = """<script>
async function ask(body) {
  const headers = {"content-type": "application/json", "authorization": "Bearer one", "x-stainless-os": "a"};
  const asked = {method: "POST", headers, body: JSON.stringify(body)};
  const reply = await fetch("GATEWAY/v1/chat/completions", asked);
  return [reply.status, reply.headers.get("x-request-id") !== null, await reply.text()];
}
(async () => {
  let said = [];
  try { for (const body of BODIES) said.push(await ask(body)); } catch (error) { said = String(error); }
  await fetch("/said", {method: "POST", body: JSON.stringify(said)});
})();
</script>"""


@contextlib.asynccontextmanager
async def pages(gateway_url):
    """A web server with the same page at every address, and a queue of what the page says."""
    page = PAGE.replace("GATEWAY", gateway_url)
    page = page.replace("BODIES", orjson.dumps([chat_body(), chat_body(stream=True)]).decode()).encode()
    said = asyncio.Queue()

    async def serve(reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"POST /said"):
                length = re.search(rb"content-length: (\d+)", head.lower())
                said.put_nowait(orjson.loads(await reader.readexactly(int(length[1]))))
            lines = b"content-type: text/html\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(page)
            writer.write(b"HTTP/1.1 200 OK\r\n" + lines + page)

    async with raw_server(serve) as port:
        yield port, said


async def shown(url, said, folder):
    """What the page at this address says when a new browser shows it."""
    browser = await asyncio.create_subprocess_exec(
        "chromium", *FLAGS, f"--user-data-dir={folder}", "--virtual-time-budget=60000", "--dump-dom", url,
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        return await asyncio.wait_for(said.get(), 120)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(browser.pid, signal.SIGKILL)
        await browser.wait()


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is missing: apt-get install chromium")
async def test_a_page_that_cors_names_reads_chats_and_streams_and_another_page_reads_nothing(tmp_path):
    async with (
        running_engines(1) as engines,
        running_gateway(engines) as gateway,
        pages(gateway.url) as (port, said),
    ):
        await gateway.reload(cors=(f"http://{ALLOWED}:{port}",))
        chat, stream = await shown(f"http://{ALLOWED}:{port}/", said, tmp_path / "one")
        assert [chat[:2], stream[:2]] == [[200, True]] * 2
        assert orjson.loads(chat[2])["choices"][0]["message"]["content"]
        assert events_of(stream[2].encode())[-1] == "[DONE]"
        refused = await shown(f"http://{OTHER}:{port}/", said, tmp_path / "two")
        assert "Failed to fetch" in refused
        assert engines[0].requests_finished == 2
