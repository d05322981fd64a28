from phasewise.benchmark.calibrate import machine as host_memory


def test_a_core_reads_memory_at_a_plausible_speed(monkeypatch):
    monkeypatch.setattr(host_memory, "READ_BYTES", 64 * 2**20)
    assert 0.2e9 < host_memory.core_read_bytes_per_s() < 2e12
