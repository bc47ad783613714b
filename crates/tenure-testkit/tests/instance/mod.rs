//! An instance of the service in this process.

/// Starts one that serves until the tests end; answers its URL.
pub(crate) fn start(store: String) -> String {
    let (started, starts) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let options = tenure_server::Options::new(store, ([127, 0, 0, 1], 0).into());
            let running = tenure_server::start(options).await.unwrap();
            started.send(format!("http://{}", running.address())).unwrap();
            running.ended().await;
        });
    });
    starts.recv().unwrap()
}
