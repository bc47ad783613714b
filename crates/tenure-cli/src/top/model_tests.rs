use super::*;
use crate::top::draw::draw;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use std::time::Duration;
use tenure::Shape;
use tenure::scene::Scene;

const TTL: Duration = Duration::from_secs(10);

/// A name with one holder and so many waiters, held for so many seconds.
fn held(name: &str, held: u64, waiters: u64) -> NameView {
    let mut scene = Scene::of(name);
    for number in 1..=waiters + 1 {
        scene.claim(number, Shape::Exclusive, TTL);
    }
    scene.pass(Duration::from_secs(held)).view()
}

fn model(names: Vec<NameView>) -> Model {
    let mut model = Model::new();
    model.hear(News::Looked { names, changes: Vec::new(), cut: false });
    model.rows.resize(10);
    model
}

fn press(model: &mut Model, keys: &str) -> Option<Effect> {
    let mut effect = None;
    for c in keys.chars() {
        let code = match c {
            '\n' => KeyCode::Enter,
            '\x1b' => KeyCode::Esc,
            '\x08' => KeyCode::Backspace,
            c => KeyCode::Char(c),
        };
        effect = model.press(KeyEvent::new(code, KeyModifiers::NONE));
    }
    effect
}

fn visible(model: &Model) -> Vec<&str> {
    model.rows.visible().map(|(view, _)| view.name.as_str()).collect()
}

fn chosen(model: &Model) -> &str {
    model.rows.selected().map_or("", |view| view.name.as_str())
}

/// What is drawn on a screen of this size, and how many rows of the table.
fn drawn(model: &mut Model, width: u16, height: u16) -> (String, usize) {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let mut rows = 0;
    terminal.draw(|frame| rows = draw(frame, model, "memory:")).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let lines = buffer.content().chunks(usize::from(width)).map(|line| line.iter().map(|cell| cell.symbol()).collect());
    (lines.collect::<Vec<String>>().join("\n"), rows)
}

#[test]
fn ten_thousand_names_are_ordered_and_only_a_screen_of_them_is_rendered() {
    let names = (0..10_000).map(|number| held(&format!("n/{number:05}"), number % 9, 0)).collect();
    let mut model = model(names);
    for keys in ["", "G", "s", "sss", "r", "/99\n"] {
        press(&mut model, keys);
        let (screen, rows) = drawn(&mut model, 100, 30);
        assert_eq!(rows, 27, "{keys:?}: {screen}");
    }
    assert_eq!(model.rows.counts().0, 10_000);
}

#[test]
fn the_choice_stays_with_its_name_when_others_come_and_go() {
    let mut model = model(["a", "b", "c"].map(|name| held(name, 1, 0)).into());
    press(&mut model, "jj");
    assert_eq!(chosen(&model), "c");
    let names = ["0", "1", "a", "c"].map(|name| held(name, 1, 0)).into();
    model.hear(News::Looked { names, changes: Vec::new(), cut: false });
    assert_eq!(chosen(&model), "c");
    model.hear(News::Looked { names: vec![held("z", 1, 0)], changes: Vec::new(), cut: false });
    assert_eq!(chosen(&model), "z");
    model.hear(News::Looked { names: Vec::new(), changes: Vec::new(), cut: false });
    assert_eq!(chosen(&model), "");
    for keys in ["j", "k", "G", "g", "\n", "b", "s", "r"] {
        assert_eq!(press(&mut model, keys), None, "nothing to choose is no panic");
    }
}

#[test]
fn the_screen_follows_the_choice() {
    let mut model = model((0..30).map(|number| held(&format!("{number:02}"), 1, 0)).collect());
    press(&mut model, "G");
    assert_eq!((visible(&model)[0], chosen(&model)), ("20", "29"));
    press(&mut model, "g");
    assert_eq!(visible(&model)[0], "00");
    press(&mut model, "jjjjjjjjjj");
    assert_eq!((visible(&model)[0], chosen(&model)), ("01", "10"));
    model.rows.resize(40);
    assert_eq!(visible(&model).len(), 30, "there is room for all");
    model.rows.resize(1);
    assert_eq!(visible(&model), ["10"]);
}

#[test]
fn columns_sort_and_what_matters_most_comes_first() {
    let mut model = model(vec![held("a", 1, 3), held("b", 5, 1), held("c", 3, 2)]);
    for (keys, order) in [
        ("3", ["b", "c", "a"]), // held longest
        ("4", ["b", "c", "a"]), // expires first
        ("5", ["a", "c", "b"]), // most wait for it
        ("r", ["b", "c", "a"]),
        ("1", ["a", "b", "c"]),
        ("r", ["c", "b", "a"]),
    ] {
        press(&mut model, keys);
        assert_eq!(visible(&model), order, "{keys}");
    }
    assert_eq!((0..6).fold(Column::Name, |column, _| column.next()), Column::Name);
}

#[test]
fn a_filter_leaves_names_and_holders_with_it_and_escape_ends_it() {
    let mut model = model(["orders/1", "orders/2", "users/1"].map(|name| held(name, 1, 0)).into());
    press(&mut model, "/users");
    assert_eq!((visible(&model), &model.mode), (vec!["users/1"], &Mode::Filter));
    press(&mut model, "\x08\x08\x08\x08\x08ers/2\n");
    assert_eq!((visible(&model), &model.mode), (vec!["orders/2"], &Mode::List));
    press(&mut model, "\x1b");
    assert_eq!(visible(&model).len(), 3);
    press(&mut model, "/l1\n");
    assert_eq!(visible(&model).len(), 3, "all are held by l1");
    press(&mut model, "/nothing\n");
    assert_eq!(visible(&model), [""; 0]);
}

#[test]
fn a_break_takes_a_yes_and_has_a_reason() {
    let name = Name::new("a").unwrap();
    let broken = |reason: &str| Some(Effect::Break { name: name.clone(), reason: reason.to_owned() });
    let mut model = model(vec![held("a", 1, 0)]);
    assert_eq!(press(&mut model, "byes\n"), broken(REASON));
    assert_eq!(press(&mut model, "by\n"), broken(REASON));
    assert_eq!(press(&mut model, "byes web-3 hangs\n"), broken("web-3 hangs"));
    for keys in ["b\n", "bno\n", "byesterday\n", "byes\x1b", "b\x1b"] {
        assert_eq!(press(&mut model, keys), None, "{keys:?}");
        assert!(model.notice.as_ref().is_some_and(|notice| notice.contains("not broken")), "{keys:?}");
        assert_eq!(model.mode, Mode::List);
    }
    press(&mut model, "\nb");
    assert!(drawn(&mut model, 100, 20).0.contains("break a?"));
    assert_eq!(press(&mut model, "y\n"), broken(REASON));
    assert_eq!(model.mode, Mode::Detail(name.clone()), "back to where it was asked");
}

#[test]
fn one_lock_has_a_view_with_its_queue() {
    let mut model = model(vec![held("a", 1, 2), held("b", 1, 0)]);
    press(&mut model, "\n");
    let (screen, rows) = drawn(&mut model, 100, 20);
    for part in ["1 hold it", "l1", "2 wait", "l2", "l3", "What happened"] {
        assert!(screen.contains(part), "{part:?} is not in {screen}");
    }
    assert_eq!(rows, 0);
    press(&mut model, "\x1b");
    assert_eq!(drawn(&mut model, 100, 20).1, 2);
    assert_eq!(press(&mut model, "q"), Some(Effect::Quit));
}

#[test]
fn a_screen_too_small_says_so_and_any_other_size_is_no_panic() {
    let mut model = model(vec![held("a", 1, 2)]);
    assert!(drawn(&mut model, 30, 4).0.contains("too small"));
    for keys in ["", "\n", "b", "\x1b", "?", "x", "/"] {
        press(&mut model, keys);
        for (width, height) in [(1, 1), (40, 6), (41, 7), (300, 100)] {
            drawn(&mut model, width, height);
        }
    }
}

#[test]
fn a_narrow_screen_leaves_columns_out_rather_than_names() {
    let mut model = model(vec![held("orders/4711", 1, 0)]);
    for width in [40, 56, 60, 80, 100] {
        let (screen, _) = drawn(&mut model, width, 10);
        assert!(screen.contains("orders/4711"), "{width}: {screen}");
        assert_eq!(screen.contains("TOKEN"), width >= 80, "{width}: {screen}");
    }
}

#[test]
fn a_store_that_is_away_is_said_until_it_is_back() {
    let mut model = model(vec![held("a", 1, 0)]);
    model.hear(News::Away("connection refused".to_owned()));
    let (screen, rows) = drawn(&mut model, 100, 20);
    assert!(screen.contains("NO ANSWER: connection refused"), "{screen}");
    assert_eq!(rows, 1, "what was seen last stays");
    model.hear(News::Looked { names: Vec::new(), changes: Vec::new(), cut: true });
    let (screen, _) = drawn(&mut model, 100, 20);
    assert!(!screen.contains("NO ANSWER") && screen.contains("and more, which are not shown"), "{screen}");
}
