//! Modules are made of schemas of strangers: none of them runs, reads or imports anything, and each tool can be called.

use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{
    get, printed, put, server,
    upstream::{Upstream, tool},
};
use crate::support::{FakeServer, calls::ask, server::TOKEN, until::PATIENCE};

fn nested(levels: usize) -> Value {
    (0..levels).fold(json!({"type": "string"}), |inner, _| json!({"type": "object", "properties": {"a": inner}}))
}

/// Names, schemas, and whether a class can be made of them.
fn schemas() -> Vec<(String, Value, bool)> {
    let object = |properties: Value| json!({"type": "object", "properties": properties});
    let many: serde_json::Map<_, _> = (0..2000).map(|n| (format!("p{n}"), json!({"type": "string"}))).collect();
    let values: Vec<_> = (0..5000).map(|n| format!("v{n}")).collect();
    let quotes = "\"\"\"\nimport os; os.system('touch /data/ran')\n\"\"\" */ process.exit(3) /* \\ \u{202e} ${1}";
    let all = [
        ("plain", object(json!({"a": {"type": "string"}})), true),
        ("reads-a-file", object(json!({"a": {"$ref": "file:///etc/passwd"}})), false),
        ("loads-an-address", object(json!({"a": {"$ref": "http://127.0.0.1:1/x"}})), false),
        (
            "base",
            json!({"type": "object", "customBasePath": "subprocess.Popen", "properties": {"a": {"type": "string"}}}),
            true,
        ),
        (
            "type",
            object(json!({"a": {"type": "string", "customTypePath": "os.system", "tsType": "process.exit(3)"}})),
            true,
        ),
        (
            "title",
            json!({"title": "Other", "type": "object", "properties": {"a": {"title": "import os", "type": "string"}}}),
            true,
        ),
        (
            "quotes",
            object(json!({"a": {"type": "string", "description": quotes, "default": quotes, "enum": [quotes, "b"]}})),
            true,
        ),
        (
            "odd-names",
            object(json!({"class": {"type": "string"}, "a b": {"type": "string"}, "__init__": {"type": "string"},
            "model_dump": {"type": "string"},
            "1": {"type": "string"}, "": {"type": "string"}, quotes: {"type": "string"}})),
            true,
        ),
        (
            "circle",
            json!({"type": "object", "$defs": {"N": {"type": "object", "properties": {"next": {"$ref": "#/$defs/N"}}}},
            "properties": {"a": {"$ref": "#/$defs/N"}}}),
            true,
        ),
        (
            "pure-circle",
            json!({"$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}, "$ref": "#/$defs/A"}),
            false,
        ),
        ("own-all-of", json!({"type": "object", "allOf": [{"$ref": "#"}]}), false),
        ("missing", object(json!({"a": {"$ref": "#/$defs/none"}})), true),
        ("deep", nested(50), false),
        ("wide", object(Value::Object(many)), false),
        ("many-values", object(json!({"a": {"enum": values}})), true),
        ("any-of", object(json!({"a": {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]}})), true),
        ("pattern", object(json!({"a": {"type": "string", "pattern": "(?<!x)(a+)+$", "format": "email"}})), true),
        ("import", object(json!({})), true),
        ("import_", object(json!({})), true),
        ("../../etc", object(json!({})), true),
        (quotes, object(json!({})), true),
    ];
    all.into_iter().map(|(name, schema, typed)| (name.to_owned(), schema, typed)).collect()
}

fn output(name: &str) -> Value {
    if name == "plain" { json!({"type": "object", "properties": {"r": {"type": "integer"}}}) } else { Value::Null }
}

#[tokio::test(flavor = "multi_thread")]
async fn modules_that_take_long_hold_up_no_search_and_are_made_once() {
    let upstream = Upstream::start(json!([tool("go")])).await;
    let server = FakeServer::start().await;
    server.engine.hang("Makes the modules by which Python programs call");
    let definition = json!({"server": {"url": upstream.url}});
    assert_eq!(ask(&server, Method::PUT, "/v1/tool-servers/up", definition).await.0, 204);
    let mut started = Vec::new();
    for _ in 0..2 {
        // The program has two minutes.
        let found = timeout(PATIENCE, ask(&server, Method::GET, "/v1/tools/search?query=go", None));
        let (_, found) = found.await.expect("an answer");
        let first = &found["tools"][0];
        assert_eq!((&first["tool"], &first["signature"]), (&json!("go"), &json!("")), "{found}");
        assert_eq!(server.engine.live().len(), 1, "it goes on");
        started.push(server.engine.started());
    }
    assert_eq!(started[0], started[1]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_schemas_become_harmless_modules() {
    let about = "\"\"\"\nimport os; os.system('touch /data/ran')\n\"\"\" */ process.exit(3); //";
    let tools: Vec<_> = schemas()
        .into_iter()
        .map(|(name, schema, _)| {
            json!({"name": name, "description": about, "inputSchema": schema, "annotations": {"readOnlyHint": true},
                "outputSchema": output(&name)})
        })
        .map(|mut tool| {
            tool.as_object_mut().expect("an object").retain(|_, value| !value.is_null());
            tool
        })
        .collect();
    let upstream = Upstream::start(json!(tools)).await;
    let server = server(&[]).await;
    put(&server, "up", json!({"url": upstream.url})).await;
    let found = get(&server, TOKEN, "/v1/tools/search?limit=50&query=").await;
    let modules: Vec<_> = found["tools"]
        .as_array()
        .unwrap_or_else(|| panic!("{found}"))
        .iter()
        .map(|tool| tool["module"].as_str().expect("a module").to_owned())
        .collect();
    assert_eq!(modules.len(), schemas().len());
    let python = format!(
        "import importlib, os\nfrom pydantic import BaseModel\n\
         for name in {modules:?}:\n    module = importlib.import_module(name)\n    \
         assert issubclass(module.Params, BaseModel) and callable(module.run) and module.Result\n    \
         assert module.Params.__bases__ == (BaseModel,), module.Params.__bases__\n    \
         print(name.split('.')[-1], 'Takes any' not in (module.Params.__doc__ or ''))\n\
         assert not os.path.exists('/data/ran')\n"
    );
    let text = printed(&server, TOKEN, "python", &python).await;
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), modules.len(), "{text}");
    for ((name, _, typed), line) in schemas().iter().zip(&lines) {
        let python = if *typed { "True" } else { "False" };
        assert!(line.ends_with(python), "{name}: {line}");
    }
    let paths: Vec<_> = modules.iter().map(|name| name.replace('.', "/")).collect();
    let javascript = format!(
        "for (const name of {paths:?}) {{\n  const module = await import(name);\n  \
         if (typeof module.run !== 'function') throw name;\n}}\n\
         console.log('all');"
    );
    assert_eq!(printed(&server, TOKEN, "javascript", &javascript).await, "all\n");
    let types = get(&server, TOKEN, "/v1/tools/up/quotes/source?language=typescript").await;
    assert!(types["source"].as_str().unwrap_or_else(|| panic!("{types}")).contains("interface Params"), "{types}");
    server.stop().await;
}

/// What a program gives is what the server gets: names, nulls, and nothing that was not given.
#[tokio::test(flavor = "multi_thread")]
async fn arguments_reach_the_tool_as_they_were_given() {
    let schema = json!({"type": "object", "properties": {
        "class": {"type": "string"}, "a b": {"type": "integer"}, "none": {"type": ["string", "null"]},
        "later": {"type": "string", "default": "x"}, "mode": {"enum": ["fast", "slow"]},
        "list": {"type": "array", "items": {"type": "object", "properties": {"from": {"type": "string"}}}},
    }, "required": ["class", "none"], "additionalProperties": {"type": "integer"}});
    let tools = json!([{"name": "odd", "inputSchema": schema, "annotations": {"readOnlyHint": true}}]);
    let upstream = Upstream::start(tools).await;
    let server = server(&[]).await;
    put(&server, "up", json!({"url": upstream.url})).await;
    let code = "from mcptools.up.odd import Params, run\n\
        print(run(**{'class': 'c', 'a b': 1, 'none': None, 'mode': 'fast', 'list': [{'from': 'me'}], 'more': 5}))\n\
        print(run(Params(class_='d', none='n')))\n";
    assert_eq!(printed(&server, TOKEN, "python", code).await, "done\ndone\n");
    let given: Vec<_> = upstream.calls().iter().map(|call| call["arguments"].clone()).collect();
    assert_eq!(
        given,
        [
            json!({"class": "c", "a b": 1, "none": null, "mode": "fast", "list": [{"from": "me"}], "more": 5}),
            json!({"class": "d", "none": "n"}),
        ]
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_programs_own_file_is_no_module_of_its_calls() {
    let upstream = Upstream::start(json!([tool("echo")])).await;
    let server = server(&[]).await;
    put(&server, "up", json!({"url": upstream.url})).await;
    let code = "open('/data/queue.py', 'w').close()\nimport mcptools\nprint(mcptools.call('up', 'echo').text)";
    assert_eq!(printed(&server, TOKEN, "python", code).await, "done\n");
    server.stop().await;
}
