//! `top`: all locks on a full screen.

mod detail;
mod draw;
mod model;
mod rows;
mod terminal;

use ratatui::crossterm::event::{self, Event, KeyEventKind};
use tenure::{Name, Tenure, Watch};
use tokio::sync::mpsc;

use crate::args;
use crate::exit::Exit;
use crate::failure::{Failure, note};
use crate::label;
use crate::signals::Signals;
use crate::store::Store;
use model::{Effect, Model, News};
use terminal::Screen;

/// How many keys may wait to be taken in.
const KEYS_MAX: usize = 64;
/// How many looks and answers may: whoever looks waits for the screen.
const NEWS_MAX: usize = 4;

pub(crate) async fn run(args: args::Top, store: Store, json: bool) -> Result<Exit, Failure> {
    if json {
        return Err(Failure::usage("top is for people: `tenure watch --json` is for programs"));
    }
    terminal::check()?;
    let mut signals = Signals::listen_for_all()?;
    if store.is_missing() {
        note(&format!("{}: there is no such file yet: waiting for it", store.shown()), json);
        tokio::select! {
            signal = signals.next() => return Ok(Exit::Signal(signal)),
            () = store.until_there(args.interval) => {}
        }
    }
    let work = async |tenure: &Tenure, signals: &mut Signals| {
        let mut watch = tenure.watch(&args.prefix).every(args.interval);
        match signals.unless_told(store.ask(watch.look())).await {
            Ok(looked) => looked?,
            Err(signal) => return Ok(signal),
        };
        let mut screen = Screen::take()?;
        show(&mut screen, watch, tenure, signals, &store).await
    };
    store.with_signals(&label::of_person(), json, &mut signals, work).await
}

/// Shows what is seen and takes keys until one, or a signal, says that it is enough.
///
/// # Cancel safety
///
/// Cancel safe: what it started ends with it, but for a break that is under way.
async fn show(
    screen: &mut Screen,
    watch: Watch,
    tenure: &Tenure,
    signals: &mut Signals,
    store: &Store,
) -> Result<Exit, Failure> {
    let failed =
        |error: std::io::Error| Failure::new(Exit::Unavailable, format!("the terminal cannot be used: {error}"));
    let (tell, mut news) = mpsc::channel(NEWS_MAX);
    let mut keys = keys().map_err(failed)?;
    let mut model = Model::new();
    model.hear(News::Looked { names: watch.names().to_vec(), changes: Vec::new(), cut: watch.is_cut() });
    // Ends when nobody hears it any more.
    tokio::spawn(look(watch, tell.clone()));
    let shown = store.shown();
    loop {
        screen.terminal.draw(|frame| _ = draw::draw(frame, &mut model, &shown)).map_err(failed)?;
        tokio::select! {
            biased;
            signal = signals.next() => return Ok(Exit::Signal(signal)),
            pressed = keys.recv() => match pressed {
                None => return Ok(Exit::Done),
                Some(Event::Key(key)) if key.kind != KeyEventKind::Release => match model.press(key) {
                    Some(Effect::Quit) => return Ok(Exit::Done),
                    Some(Effect::Break { name, reason }) => {
                        tokio::spawn(end(tenure.clone(), name, reason, tell.clone()));
                    }
                    None => {}
                },
                // Another size, say: it is drawn anew.
                Some(_) => {}
            },
            Some(heard) = news.recv() => model.hear(heard),
        }
    }
}

/// Looks again and again.
///
/// # Cancel safety
///
/// Cancel safe: it only looks.
async fn look(mut watch: Watch, tell: mpsc::Sender<News>) {
    loop {
        let heard = match watch.look().await {
            Ok(_) => {
                let changes = watch.changes().collect();
                News::Looked { names: watch.names().to_vec(), changes, cut: watch.is_cut() }
            }
            Err(error) => News::Away(error.to_string()),
        };
        if tell.send(heard).await.is_err() {
            return;
        }
    }
}

/// Breaks a name and tells how that went.
///
/// # Cancel safety
///
/// Cancelling leaves the outcome unknown, as the next look shows it.
async fn end(tenure: Tenure, name: Name, reason: String, tell: mpsc::Sender<News>) {
    let told = match tenure.break_holders(name.as_str(), None, &reason).await {
        Ok(0) => format!("{name}: nobody held it"),
        Ok(1) => format!("{name}: ended 1 claim"),
        Ok(count) => format!("{name}: ended {count} claims"),
        Err(error) => error.to_string(),
    };
    let _ = tell.send(News::Told(told)).await;
}

/// What the terminal sends. A thread waits for it, and ends with the process.
fn keys() -> std::io::Result<mpsc::Receiver<Event>> {
    let (press, pressed) = mpsc::channel(KEYS_MAX);
    let read = move || {
        while let Ok(event) = event::read() {
            if press.blocking_send(event).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("keys".to_owned()).spawn(read)?;
    Ok(pressed)
}
