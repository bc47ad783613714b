//! Names through a proxy that means well, before two instances: they reach the right lock, or are refused.

use std::fs;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use serde_json::json;
use tempfile::TempDir;
use tenure_testkit::servers::Redis;
use tokio::net::TcpStream;
use tokio::time::{Duration, sleep};

use crate::support::{Client, Look, PATIENCE, instance, name, redis};

/// nginx before two instances, ended with the test.
struct Nginx {
    child: Child,
    _folder: TempDir,
    /// Where it passes paths on as they came, and where it writes them anew.
    as_they_came: Client,
    anew: Client,
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Nginx {
    async fn before(instances: [&Client; 2]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path().display();
        let servers: String = instances.map(|instance| format!("server {}; ", instance.address)).concat();
        let (as_they_came, anew) = (free_port(), free_port());
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|what| format!("{what}_temp_path {here}/{what};\n"))
            .concat();
        let config = format!(
            "daemon off;\nmaster_process off;\npid {here}/pid;\nerror_log {here}/error.log;\nevents {{}}\n\
            http {{\naccess_log off;\n{temporary}upstream localhost {{ {servers}}}\n\
            server {{ listen 127.0.0.1:{as_they_came}; location / {{ proxy_pass http://localhost; }} }}\n\
            server {{ listen 127.0.0.1:{anew}; location / {{ proxy_pass http://localhost/; }} }}\n}}\n"
        );
        let file = folder.path().join("nginx.conf");
        fs::write(&file, config).unwrap();
        let nginx = if fs::exists("/usr/sbin/nginx").unwrap() { "/usr/sbin/nginx" } else { "nginx" };
        let log = folder.path().join("error.log");
        let mut command = Command::new(nginx);
        command.arg("-e").arg(&log).arg("-p").arg(folder.path()).arg("-c").arg(&file).stdin(Stdio::null());
        let child = command.spawn().expect("nginx is not installed: run scripts/setup");
        let at = |port: u16| Client { address: ([127, 0, 0, 1], port).into(), bearer: None };
        let mut nginx = Self { child, _folder: folder, as_they_came: at(as_they_came), anew: at(anew) };
        let started = Instant::now();
        while TcpStream::connect(nginx.anew.address).await.is_err() {
            let ended = nginx.child.try_wait().unwrap();
            let log = fs::read_to_string(&log).unwrap_or_default();
            assert!(ended.is_none() && started.elapsed() < PATIENCE, "nginx does not listen: {log}");
            sleep(Duration::from_millis(20)).await;
        }
        nginx
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn names_reach_the_right_lock_through_nginx_or_are_refused() {
    // Of this test alone: nothing is to be left in it.
    let redis = tokio::task::spawn_blocking(Redis::start).await.unwrap();
    let (a, b, look) = (instance(redis.url()).await, instance(redis.url()).await, Look::at(redis.url()).await);
    let nginx = Nginx::before([&a, &b]).await;
    let names = ["orders/42", "..", "a/../b", "a//b", ".", "a/./b", "a%2Fb", "a b", "ÿ", "?", "#", "a;b", "%00"];
    let acquire = json!({ "owner": "o", "claim": "1", "ttl_ms": 60_000 }).to_string();
    for proxy in [&nginx.as_they_came, &nginx.anew] {
        for name in names {
            let encoded: String = name.bytes().map(|byte| format!("%{byte:02X}")).collect();
            let plainly = name.replace('%', "%25").replace('/', "%2F").replace('?', "%3F").replace('#', "%23");
            // What a proxy decodes and folds is another path, and nobody behind it can know: `a/../b` is `b` there.
            let is_folded = name.split('/').any(|part| [".", "..", ""].contains(&part));
            let written = [encoded, plainly.replace(' ', "%20")];
            let written = if std::ptr::eq(proxy, &nginx.anew) && is_folded { &[][..] } else { &written[..] };
            for written in written {
                let reply = proxy.call("POST", &format!("/v1/locks/{written}/acquire"), Some(&acquire)).await;
                if reply.status == 200 {
                    assert_eq!(reply.json()["name"], name, "{written}");
                    let release = json!({ "name": name, "owner": "o", "claim": "1" });
                    proxy.release(release).await.is(200);
                } else {
                    assert!((400..500).contains(&reply.status), "{written}: {reply:?}");
                }
            }
            // In the body it always does.
            let held = proxy.acquire(json!({ "name": name, "owner": "o", "claim": "1", "ttl_ms": 60_000 })).await;
            assert_eq!(held.is(200).json()["name"], name);
            assert_eq!(look.counts(name).await, (1, 0), "{name}");
            assert_eq!(proxy.show(name).await["holders"].as_array().unwrap().len(), 1, "{name}");
            proxy.release(json!({ "name": name, "owner": "o", "claim": "1" })).await.is(200);
        }
        // What is no name is none behind a proxy either.
        for written in ["%00", "a%00b", "%0A", "%FF", "%zz", "%"] {
            let reply = proxy.call("POST", &format!("/v1/locks/{written}/acquire"), Some(&acquire)).await;
            assert!((400..500).contains(&reply.status), "{written}: {reply:?}");
        }
        proxy.acquire(json!({ "name": "\0", "ttl_ms": 60_000 })).await.tells_problem(400, "invalid");
        assert_eq!(a.get("/v1/locks").await.is(200).json(), json!([]), "nothing is left, whatever its name");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_that_is_passed_on_as_it_came_reaches_its_lock() {
    let store = redis().await;
    let (a, b) = (instance(&store).await, instance(&store).await);
    let nginx = Nginx::before([&a, &b]).await;
    let (one, two) = (name("orders/42"), name("orders/43"));
    let acquire = json!({ "ttl_ms": 60_000 }).to_string();
    let path = |name: &str| format!("/v1/locks/{}/acquire", name.replace('/', "%2F"));
    let held = nginx.as_they_came.call("POST", &path(&one), Some(&acquire)).await;
    assert_eq!(held.is(200).json()["name"], one);
    let refused = nginx.anew.call("POST", &path(&two), Some(&acquire)).await;
    let refused = refused.tells_problem(404, "not_found");
    assert!(refused.json()["hint"].as_str().is_some_and(|hint| hint.contains("/v1/acquire")), "{refused:?}");
}
