"""Who may share an answer: whatever a request says beside its last user turn keeps it apart from others."""

import orjson
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from phasewise.core.request import Endpoint
from phasewise.semantic_match.identity import identify

QUESTION = "how do I reset my password?"
SAMPLING = {
    "temperature": 0.2, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "max_tokens": 7, "max_completion_tokens": 9,
    "frequency_penalty": 0.5, "presence_penalty": 0.5, "repetition_penalty": 1.1, "stop": ["x"],
    "response_format": {"type": "json_object"}, "tools": [{"type": "function"}], "tool_choice": "auto",
    "user": "u1", "seed": 3, "logit_bias": {"5": 1}, "reasoning_effort": "low", "min_tokens": 2,
    "chat_template_kwargs": {"enable_thinking": False}, "structured_outputs": {"regex": "a+"},
    "documents": [{"text": "d"}], "ignore_eos": True,
}  # fmt: skip

texts = st.text(max_size=12)
names = st.from_regex(r"[a-z0-9][a-z0-9-]{0,8}", fullmatch=True)
messages = st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": texts})
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, width=32) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)


def chat(question=QUESTION, *, history=(), model="m", **fields):
    return {"model": model, "messages": [*history, {"role": "user", "content": question}], **fields}


def identity(fields, tenant="acme", namespace="default", **options):
    found = identify(Endpoint.CHAT, fields, tenant, namespace, **options)
    assert found is not None
    return found


@given(question=texts, other=texts, history=st.lists(messages, max_size=3))
def test_only_the_last_user_turn_may_differ_within_a_scope(question, other, history):
    here, there = (identity(chat(it, history=history)) for it in (question, other))
    assert here.scope == there.scope
    assert (here.key == there.key) == (question == other)


@given(history=st.lists(messages, min_size=1, max_size=3), place=st.integers(0, 2), data=st.data())
def test_any_change_of_what_was_said_before_is_another_scope(history, place, data):
    place %= len(history)
    changed = [*history[:place], data.draw(messages), *history[place + 1 :]]
    assume(changed != history)
    assert identity(chat(history=history)).scope != identity(chat(history=changed)).scope
    assert identity(chat(history=history)).scope != identity(chat(history=history[:-1])).scope


@pytest.mark.parametrize("name", SAMPLING)
def test_any_field_that_shapes_the_answer_is_another_scope(name):
    without, with_it = identity(chat()), identity(chat(**{name: SAMPLING[name]}))
    assert (without.scope, without.key) != (with_it.scope, with_it.key)
    assert without.scope != with_it.scope


@given(name=st.sampled_from(sorted(SAMPLING)), here=values, there=values)
def test_two_values_of_a_field_share_a_scope_only_if_they_say_the_same(name, here, there):
    same = identity(chat(**{name: here})).scope == identity(chat(**{name: there})).scope
    assert not same or here == there


def test_another_model_is_another_scope():
    assert identity(chat(model="m")).scope != identity(chat(model="n")).scope


@pytest.mark.parametrize("delivery", [{"stream": True}, {"stream": True, "stream_options": {}}])
def test_how_an_answer_is_sent_changes_nothing(delivery):
    assert identity(chat(**delivery)).key == identity(chat()).key


@given(fields=st.dictionaries(st.sampled_from(sorted(SAMPLING)), values), data=st.data())
def test_the_order_of_keys_does_not_matter(fields, data):
    body = chat(**fields)
    shuffled = dict(data.draw(st.permutations(list(body.items()))))
    assert identity(shuffled).key == identity(body).key


def test_the_order_of_a_messages_fields_does_not_matter():
    here, there = (
        chat(history=[it]) for it in ({"role": "user", "content": "x"}, {"content": "x", "role": "user"})
    )
    there["messages"][-1] = dict(reversed(there["messages"][-1].items()))
    assert identity(here) == identity(there)


@pytest.mark.parametrize("field", ["guided_json", "response_format", "chat_template_kwargs"])
def test_the_order_of_what_a_field_holds_is_part_of_the_request(field):
    """An engine fills in a schema's properties as they stand: reasons first make another answer."""
    here, there = (
        identity(chat(**{field: {"schema": {name: {"type": "string"} for name in names}}}))
        for names in (("reasoning", "answer"), ("answer", "reasoning"))
    )
    assert here.scope != there.scope
    assert here.key != there.key


@pytest.mark.parametrize(
    ("one", "other"), [(b'{"temperature":0}', b'{"temperature":0.0}'), (b'{"top_p":1}', b'{"top_p":1e0}')]
)
def test_a_field_is_the_same_however_its_number_is_spelled(one, other):
    assert identity(chat(**orjson.loads(one))).key == identity(chat(**orjson.loads(other))).key


def test_a_number_that_a_template_may_print_is_told_apart_by_its_spelling():
    here, there = (identity(chat(chat_template_kwargs={"version": it})) for it in (1, 1.0))
    assert here.scope != there.scope


@pytest.mark.parametrize("name", SAMPLING)
def test_a_field_that_is_null_is_as_if_it_were_left_out(name):
    assert identity(chat(**{name: None})).key == identity(chat()).key


def test_true_is_no_number():
    assert identity(chat(top_k=True)).scope != identity(chat(top_k=1)).scope


@given(st.tuples(texts, texts), st.tuples(texts, texts))
def test_no_spelling_of_tenant_and_namespace_looks_like_another_pair(here, there):
    same = identity(chat(), *here).scope == identity(chat(), *there).scope
    assert same == (here == there)


@given(st.tuples(names, names, texts), st.tuples(names, names, texts))
def test_domains_of_two_tenants_never_meet(here, there):
    domains = [
        identity(chat(model=model), tenant, namespace).domain for tenant, namespace, model in (here, there)
    ]
    assert (domains[0] == domains[1]) == (here == there)


def test_another_embedding_space_is_another_scope():
    assert identity(chat(), space="a").scope != identity(chat(), space="b").scope


def test_one_text_part_is_the_same_as_plain_text():
    parts = [{"type": "text", "text": QUESTION}]
    assert identity(chat(parts)) == identity(chat(QUESTION))


def test_where_a_turn_is_cut_into_parts_belongs_to_it():
    cut = [
        identity(chat([{"type": "text", "text": text} for text in it]))
        for it in (["a\nb", "c"], ["a", "b\nc"])
    ]
    assert cut[0].key != cut[1].key
    assert cut[0].question == "a\nb\nc"
    assert cut[0].scope != identity(chat("a\nb\nc")).scope


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        7,
        [{"type": "image_url"}],
        [{"type": "text", "text": "x", "image_url": "data:"}],
        [{"text": "x"}],
    ],
)
def test_a_turn_that_is_not_all_text_has_no_identity(content):
    assert identify(Endpoint.CHAT, chat(content), "acme") is None


@pytest.mark.parametrize(
    "fields", [{"model": "m"}, {"model": "m", "messages": []}, {"model": "m", "messages": [7]}]
)
def test_a_chat_without_a_turn_has_no_identity(fields):
    assert identify(Endpoint.CHAT, fields, "acme") is None


def test_a_last_turn_of_somebody_else_has_no_identity():
    body = {"model": "m", "messages": [{"role": "assistant", "content": "x"}]}
    assert identify(Endpoint.CHAT, body, "acme") is None


def test_a_prompt_and_a_chat_are_never_the_same():
    prompt = identify(Endpoint.COMPLETIONS, {"model": "m", "prompt": QUESTION}, "acme")
    assert prompt is not None
    assert prompt.question == QUESTION
    assert prompt.key != identity({"model": "m", "messages": [{"role": "user", "content": QUESTION}]}).key


def test_tags_name_an_answer_and_do_not_set_it_apart():
    assert identity(chat(), tags=("a",)).key == identity(chat()).key
