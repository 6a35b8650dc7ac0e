//! Outgoing connections: proxies, certificates, and addresses of vendors' models.

use serde_json::json;

use crate::harness::{CANARY, Home, config_for, merged};
use crate::model::{Model, Reply};
use crate::tunnel::Proxy;
use crate::without_syscall::Withheld;

/// Returns a home whose model is reachable only through the proxy.
fn far_away() -> Home {
    Home::with(&merged(
        config_for("http://model.internal/v1"),
        &json!({ "agents": { "defaults": { "max_retries": 0 } } }),
    ))
}

#[test]
fn the_proxy_of_the_environment_is_used() {
    for name in ["HTTP_PROXY", "http_proxy", "ALL_PROXY"] {
        let model = Model::scripted([Reply::text("Through.")]);
        let proxy = Proxy::to(&model);
        far_away()
            .bantam()
            .env(name, proxy.url())
            .args(["agent", "-m", "hi"])
            .run()
            .answers("Through.\n");
        assert_eq!(
            proxy.asked(),
            ["CONNECT model.internal:80 HTTP/1.1"],
            "{name}"
        );
    }
}

#[test]
fn proxied_page_comes_from_checked_address() {
    let site = Model::answering(|request, _| match request.path.as_str() {
        "/moved" => Reply::html(302, "").header("Location", "http://127.0.0.1:1/"),
        _ => Reply::html(200, "<p>Through."),
    });
    let proxy = Proxy::to(&site);
    let fetched = |url: &'static str| {
        let (_model, home) = Home::of(Model::answering(move |request, _| {
            match request.texts("tool").pop() {
                None => Reply::call("web_fetch", &json!({ "url": url })),
                Some(result) => Reply::text(&result),
            }
        }));
        home.bantam()
            .env("HTTP_PROXY", proxy.url())
            .args(["agent", "-m", "fetch"])
            .run()
            .exits(0)
            .stdout
            .clone()
    };
    for url in [
        "http://93.184.216.34/",
        "http://0x5db8d822/a",
        "http://[2606:2800:220:1::1]:8080/",
    ] {
        assert!(fetched(url).contains("```\nThrough.\n```"), "{url}");
    }
    let targets = [
        "93.184.216.34:80",
        "93.184.216.34:80",
        "[2606:2800:220:1::1]:8080",
    ];
    assert_eq!(
        proxy.asked(),
        targets.map(|target| format!("CONNECT {target} HTTP/1.1"))
    );
    let urls =
        "http://10.0.0.1/ http://127.1/ http://169.254.169.254/ http://[::1]/ http://localhost/";
    for url in urls.split_whitespace() {
        let text = fetched(url);
        assert!(!text.contains("[status"), "{url}: {text}");
    }
    assert!(fetched("http://93.184.216.34/moved").contains("127.0.0.1 is this machine"));
    assert_eq!(proxy.asked().len(), 4, "{:?}", proxy.asked());
}

#[test]
fn socks_proxy_gets_the_hosts_name() {
    let model = Model::scripted([Reply::text("Through.")]);
    let proxy = Proxy::socks_to(&model);
    far_away()
        .bantam()
        .env("ALL_PROXY", proxy.socks_url("socks5h"))
        .args(["agent", "-m", "hi"])
        .run()
        .answers("Through.\n");
    assert_eq!(proxy.asked(), ["model.internal:80"]);
}

#[test]
fn socks_proxy_gets_the_judged_address_of_a_page() {
    let site = Model::answering(|_, _| Reply::html(200, "<p>Through."));
    let proxy = Proxy::socks_to(&site);
    let (_model, home) = Home::of(Model::answering(move |request, _| {
        match request.texts("tool").pop() {
            None => Reply::call("web_fetch", &json!({ "url": "http://93.184.216.34/" })),
            Some(result) => Reply::text(&result),
        }
    }));
    let run = home
        .bantam()
        .env("HTTP_PROXY", proxy.socks_url("socks5h"))
        .args(["agent", "-m", "fetch"])
        .run();
    run.exits(0).shows("Through.");
    assert_eq!(proxy.asked(), ["93.184.216.34:80"]);
}

#[test]
fn a_models_own_proxy_wins() {
    let model = Model::scripted([Reply::text("Through.")]);
    let proxy = Proxy::to(&model);
    let config = merged(
        config_for("http://model.internal/v1"),
        &json!({ "model_list": [ { "proxy": proxy.url() } ] }),
    );
    let asked = Home::with(&config);
    asked
        .bantam()
        .env("HTTP_PROXY", "http://127.0.0.1:9")
        .args(["agent", "-m", "hi"])
        .run()
        .answers("Through.\n");
    assert_eq!(proxy.asked().len(), 1);
}

#[test]
fn unusable_proxy_exits_3_without_showing_it() {
    for wrong in [
        format!("ftp://user:{CANARY}@127.0.0.1:1"),
        format!("not an address {CANARY}"),
    ] {
        let run = far_away()
            .bantam()
            .env("HTTP_PROXY", &wrong)
            .args(["agent", "-m", "hi"])
            .run();
        run.fails(3).prints("").says("HTTP_PROXY");
    }
}

#[test]
fn certificates_that_cannot_be_used_exit_3() {
    // Certificates are only read for TLS.
    let home = Home::with(&config_for("https://model.invalid/v1"));
    let none = home.write("none.pem", "nothing here");
    for path in [none, home.path("absent.pem")] {
        let run = home
            .bantam()
            .env("SSL_CERT_FILE", &path)
            .args(["agent", "-m", "hi"])
            .run();
        run.fails(3)
            .prints("")
            .says(path.file_name().unwrap().to_str().unwrap());
    }
}

#[test]
fn azure_has_its_own_header_and_the_deployment_in_the_address() {
    let model = Model::scripted([Reply::text("Hello.")]);
    let base = model.base().replace("/v1", "");
    let extra = json!({ "model_list": [ { "model": "azure/my-gpt", "api_base": base } ] });
    let home = Home::asking(&model, &extra);
    home.agent(["-m", "hi"]).answers("Hello.\n");
    let request = model.request(0);
    assert_eq!(
        request.path,
        "/openai/deployments/my-gpt/chat/completions?api-version=2024-10-21"
    );
    assert_eq!(request.header("api-key"), Some(CANARY));
    assert_eq!(request.header("authorization"), None);
}

/// Some proxies compress although the request allows only plain answers.
#[test]
fn compressed_answer_exits_3_with_its_encoding() {
    for encoding in ["gzip", "BR"] {
        let packed = Reply::text("Hello.").header("Content-Encoding", encoding);
        let (_model, home) = Home::of(Model::scripted([packed]));
        let run = home.agent(["-m", "hi"]);
        run.exits(3).prints("").fails_with_a_hint();
        run.says(&format!("compressed ({})", encoding.to_lowercase()));
    }
    for encoding in ["identity", "none", "UTF-8", ""] {
        let plain = Reply::text("Hello.").header("Content-Encoding", encoding);
        let (_model, home) = Home::of(Model::scripted([plain]));
        home.agent(["-m", "hi"]).answers("Hello.\n");
    }
}

/// As with too many processes of the same user.
#[test]
fn missing_thread_is_reported_with_a_remedy() {
    const THREADS: &[Withheld] = &[
        (libc::SYS_clone3, libc::EAGAIN),
        (libc::SYS_clone, libc::EAGAIN),
    ];
    let home = Home::of(Model::never_asked()).1;
    let question = home.bantam().args(["agent", "-m", "hi"]);
    let run = question.on_a_system_without(THREADS).run();
    run.fails(1).prints("").says("`ulimit -u`");
}
