//! The parts that measure nothing: arithmetic, parsing, and the report from raw data.
#![allow(missing_docs)]

use serde_json::{Value, json};
use tenure_bench::data::{Data, Pick};
use tenure_bench::limit::parse_csv;
use tenure_bench::plan::Plan;
use tenure_bench::report;
use tenure_bench::report::table::{exact, number};
use tenure_bench::server::{monitor_line, parse_info};
use tenure_bench::stats::{Figure, contest, transfers};

#[test]
fn transfers_count_changes_of_owner_in_the_order_of_time() {
    // a, a, b, a: told by two processes, each in its own order.
    let mut turns = vec![(1.0, 'a'), (2.0, 'a'), (4.0, 'a'), (3.0, 'b')];
    assert_eq!(transfers(&mut turns), 2);
    assert_eq!(transfers::<char>(&mut []), 0);
    assert_eq!(transfers(&mut [(1.0, 'a')]), 0);
}

#[test]
fn a_contest_is_summed_up_over_processes() {
    let one = json!({ "turns": [[100, 50, 0], [300, 150, 0]], "waiting": [], "cpu_s": 0.5 });
    let other = json!({ "turns": [[200, 100, 0], [2_000_000, 9, 0]], "waiting": [[0, 900_000]], "cpu_s": 0.25 });
    let starved = json!({ "turns": [], "waiting": [[0, 1_000_000]], "cpu_s": 0.25 });
    let result = contest(&[one, other, starved], 1, 1.0).unwrap();
    assert_eq!(result["acquisitions"], 3, "what came after the end does not count");
    assert_eq!(result["transfers_per_s"], 2.0);
    assert_eq!(result["wait_p50_us"], 150.0, "a wait that is under way counts as long as it has lasted");
    assert_eq!(result["wait_max_us"], 1_000_000.0);
    assert_eq!(result["cpu_s"], 1.0);
    assert_eq!(result["without_a_turn"], 1);
    let jain = result["jain"].as_f64().unwrap();
    assert!((jain - 9.0 / 15.0).abs() < 1e-9, "one who got nothing counts: {jain}");
}

#[test]
fn a_contest_nobody_won_is_an_error() {
    let nobody = json!({ "turns": [], "waiting": [[0, 5]], "cpu_s": 0.0 });
    assert!(contest(&[nobody], 1, 1.0).unwrap_err().contains("nobody"));
    assert!(contest(&[json!({ "waiting": [] })], 1, 1.0).unwrap_err().contains("turns"));
}

#[test]
fn monitor_lines_of_clients_are_told_from_those_of_scripts() {
    let time = Some(1_339_518_083.107_412);
    assert_eq!(monitor_line(r#"1339518083.107412 [0 127.0.0.1:60866] "evalsha" "abc" "1" "key""#), time);
    assert_eq!(monitor_line(r#"+1339518083.107412 [3 [::1]:60866] "get" "a b""#), time);
    assert_eq!(monitor_line(r#"1339518083.107412 [0 127.0.0.1:60866] "set" "[0 lua]" "x""#), time);
    assert_eq!(monitor_line(r#"1339518083.107412 [0 lua] "set" "key" "lua]""#), None);
    assert_eq!(monitor_line("OK"), None);
}

#[test]
fn the_rate_is_read_from_old_and_new_redis_benchmarks() {
    let new = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\"p95_latency_ms\",\"p99_latency_ms\",\
        \"max_latency_ms\"\n\"SET key:__rand_int__ 1 NX PX 30000\",\"190476.20\",\"1.2\",\"0.1\",\"1.1\",\"2.0\",\"2.5\",\"3.0\"\n";
    assert_eq!(parse_csv(new), Some(190_476.2));
    assert_eq!(parse_csv("\"SET key:__rand_int__ 1\",\"81234.50\"\n"), Some(81_234.5));
    assert_eq!(parse_csv("Could not connect to Redis\n"), None);
}

#[test]
fn statistics_of_a_server_are_read() {
    let info = "# CPU\r\nused_cpu_sys:1.5\r\nused_cpu_user:2.25\r\n# Memory\r\nused_memory:1000\r\n# Commandstats\r\n\
        cmdstat_evalsha:calls=10,usec=200,usec_per_call=20.00,rejected_calls=0,failed_calls=0\r\n\
        cmdstat_pexpire:calls=7,usec=20,usec_per_call=2.00\r\ncmdstat_info:calls=99,usec=1,usec_per_call=1\r\n";
    let look = parse_info(info);
    assert_eq!((look.cpu_s, look.memory, look.scripts, look.script_us), (3.75, 1_000.0, 10.0, 200.0));
    assert_eq!((look.commands, look.expiries), (17.0, 7.0), "looks do not count themselves");
}

#[test]
fn numbers_are_short() {
    assert_eq!(number(1_234_567.0), "1,230,000");
    assert_eq!(number(73.21), "73.2");
    assert_eq!(number(0.012_34), "0.0123");
    assert_eq!(number(f64::NAN), "-");
    assert_eq!(exact(1_024.0), "1,024");
    assert_eq!(exact(1.3), "1.3");
}

fn line(question: &str, contestant: &str, params: &Value, round: usize, result: &Value) -> String {
    let line = json!({ "question": question, "contestant": contestant, "store": "redis", "params": params,
        "round": round, "result": result });
    format!("{line}\n")
}

/// A run of three rounds with one peer, and one that is missing.
fn small_run() -> String {
    let tenure = json!({ "peer": "tenure", "store": "redis", "library": "tenure", "version": "1", "settings": "a | b",
        "renews": true });
    let run = json!({ "machine": { "cpu": "a cpu", "cores": 2, "memory": "8 GB", "kernel": "Linux" },
        "versions": { "redis": "7.0.15", "java": null }, "date": "2026-01-01", "commit": "abc",
        "plan": { "quick": false, "rounds": 3, "peers": null }, "contestants": [tenure] });
    let mut text = format!("{run}\n");
    for round in 1..=3_u32 {
        let (slow, round) = (f64::from(round), round as usize);
        for (name, rate, p50, p99) in [("tenure", 2_000.0, 3_000.0, 5_000.0), ("redsync", 1_500.0, 10.0, 100_000.0)] {
            let result = json!({ "acquisitions_per_s": rate / slow, "transfers_per_s": rate / slow / 2.0,
                "wait_p50_us": p50, "wait_p99_us": p99, "wait_max_us": p99 * 2.0, "jain": 0.99 });
            text += &line("hot", name, &json!({ "processes": 8 }), round, &result);
        }
        for (name, rate) in [("tenure", 60_000.0), ("redis-benchmark", 100_000.0)] {
            text += &line("pairs", name, &json!({ "tasks": 256 }), round, &json!({ "pairs_per_s": rate / slow }));
        }
        let claim = json!({ "claim": { "server_us": 80.0, "calls": 13 } });
        text += &line("waiters", "tenure", &json!({ "waiters": 10 }), round, &claim);
        let times = json!({ "claim": { "p50_us": 210.0, "p99_us": 5_290.0 }, "all_ms": 17.0 });
        let times = line("waiters", "tenure", &json!({ "waiters": 10 }), round, &times);
        text += &times.replace("\"redis\"", "\"etcd\"");
    }
    let missing = json!({ "missing": "redis-py", "question": "hot", "store": "redis", "params": { "processes": 32 },
        "round": 2, "why": "no answer within 90 s: ended" });
    // The last line was cut off when the run was ended.
    text + &format!("{missing}\n{{\"question\":\"pairs\",\"contest")
}

#[test]
fn ratios_are_taken_round_by_round() {
    let data = Data::parse(&small_run()).unwrap();
    let pick = Pick { question: "hot", store: "redis", params: &[("processes", 8.0)], part: "" };
    let ratio = data.ratio(&pick, ("tenure", "redsync"), "acquisitions_per_s").unwrap();
    assert!((ratio.median - 4.0 / 3.0).abs() < 1e-9 && (ratio.max - ratio.min).abs() < 1e-9);
    let rate = data.figure(&pick, "tenure", "acquisitions_per_s").unwrap();
    assert_eq!(rate, Figure { median: 1_000.0, min: 2_000.0 / 3.0, max: 2_000.0, rounds: 3 });
    assert_eq!(data.contestants(&pick), ["tenure", "redsync"]);
}

#[test]
fn a_report_is_made_from_a_small_run() {
    let folder = tempfile::tempdir().unwrap();
    let raw = folder.path().join("small.jsonl");
    std::fs::write(&raw, small_run()).unwrap();
    let text = report::text(&Data::read(&raw).unwrap());
    for part in [
        "[small.jsonl](runs/small.jsonl)",
        "of what redis-benchmark does | 0.600 | >= 1 | **not reached**",
        "the longest wait, against the peer best in it (redsync) | 0.0500 times | <= 0.1 times | reached",
        "acquisitions/s, against the best peer | - | >= 50 times | not measured",
        "| hot, 8 processes: p50 of the wait | 3.00 ms | redsync 0.0100 ms |",
        "| tenure | 1,000 (667..2,000) | 1.00 times |",
        "| redsync | 750 (500..1,500) | 1.33 times |",
        "| 10 | 80.0 (13.0) | - | - |",
        "| etcd | 10 | 210 (5,290) | - | - | 17.0 (17.0..17.0) |",
        "redis-py over redis, hot {\"processes\":32}: no answer within 90 s: ended (round 2)",
        "a \\| b",
        "java: not there",
    ] {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
}

#[test]
fn a_later_run_replaces_the_questions_it_has() {
    let mut data = Data::parse(&small_run()).unwrap();
    let mut later = data.clone();
    later.sources.push(("later.jsonl".to_owned(), Vec::new()));
    later.measured.retain(|line| line.question == "hot" && line.round == 1);
    data.replace(later);
    assert_eq!(data.measured.iter().filter(|line| line.question == "hot" && line.round > 1).count(), 0);
    assert!(data.measured.iter().any(|line| line.question == "pairs"), "those of the others stay");
    assert_eq!(data.sources, [("later.jsonl".to_owned(), vec!["hot over redis".to_owned()])]);
}

#[test]
fn a_report_and_its_plots_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let data = Data::parse(&small_run()).unwrap();
    report::write(&data, folder.path()).unwrap();
    assert!(folder.path().join("REPORT.md").exists());
    for plot in ["pairs", "hot-waits", "hot-acquisitions", "waiters"] {
        let svg = std::fs::read_to_string(folder.path().join(format!("{plot}.svg"))).unwrap();
        assert!(svg.contains("</svg>"), "{plot}");
    }
    assert!(!folder.path().join("redlock.svg").exists(), "there are no data for it");
}

#[test]
fn a_quick_run_leaves_out_stores_that_are_not_named() {
    let plan = |quick, stores: &[&str]| Plan {
        quick,
        rounds: 1,
        only: Vec::new(),
        stores: stores.iter().map(|store| (*store).to_owned()).collect(),
        peers: None,
    };
    assert!(plan(false, &[]).measures("etcd") && plan(true, &[]).measures("redis"));
    assert!(!plan(true, &[]).measures("etcd"), "needs a server more");
    assert!(plan(true, &["etcd"]).measures("etcd") && !plan(true, &["etcd"]).measures("redis"));
}

#[test]
fn raw_data_begin_with_the_run() {
    assert!(Data::parse("").is_err());
    assert!(Data::parse("{\"what\":\"a line of another form\"}\n").is_err());
}
