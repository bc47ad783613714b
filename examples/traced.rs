//! What a request did with its locks, as a trace: how long it waited, behind whom, how long it held.
//!
//! With `OTEL_EXPORTER_OTLP_ENDPOINT` (say `http://localhost:4317`) the spans go to a collector, Jaeger or Tempo;
//! without it they are kept, looked at, and printed.

use std::collections::HashMap;
use std::error::Error;
use std::time::Duration;

use opentelemetry::trace::{SpanId, TracerProvider as _};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use tenure::Tenure;
use tracing::{Instrument as _, info_span};
use tracing_subscriber::layer::SubscriberExt as _;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let kept = InMemorySpanExporter::default();
    let provider = match std::env::var("OTEL_EXPORTER_OTLP_ENDPOINT") {
        Ok(_) => {
            let exporter = opentelemetry_otlp::SpanExporter::builder().with_tonic().build()?;
            SdkTracerProvider::builder().with_batch_exporter(exporter).build()
        }
        Err(_) => SdkTracerProvider::builder().with_simple_exporter(kept.clone()).build(),
    };
    let spans = tracing_opentelemetry::layer().with_tracer(provider.tracer("shop"));
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(spans))?;

    let tenure = Tenure::connect("memory:").await?;
    let another = tenure.lock("orders/42").label("the other request").strict_fifo().acquire().await?;
    let request = async {
        let guard = tenure.lock("orders/42").strict_fifo().acquire().await?;
        guard.protect(tokio::time::sleep(Duration::from_millis(5))).await?;
        guard.release().await
    };
    let released = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        another.release().await
    };
    tokio::try_join!(request.instrument(info_span!("ship")), released)?;

    provider.force_flush()?;
    check(&kept.get_finished_spans()?);
    provider.shutdown()?;
    Ok(())
}

/// Acquiring, holding and releasing are within the claim, and that is within the request.
fn check(spans: &[SpanData]) {
    if spans.is_empty() {
        println!("sent to the collector");
        return;
    }
    let by_id: HashMap<SpanId, &SpanData> = spans.iter().map(|span| (span.span_context.span_id(), span)).collect();
    let path = |span: &SpanData| {
        let mut names = vec![span.name.to_string()];
        let mut parent = span.parent_span_id;
        while let Some(outer) = by_id.get(&parent) {
            names.push(outer.name.to_string());
            parent = outer.parent_span_id;
        }
        names.reverse();
        names.join(" > ")
    };
    let paths: Vec<String> = spans.iter().map(path).collect();
    for part in ["acquire", "hold", "release"] {
        let within = format!("ship > claim > {part}");
        assert!(paths.contains(&within), "{within} is not among {paths:?}");
    }
    let Some(claim) = spans.iter().find(|span| path(span) == "ship > claim") else { panic!("no claim: {paths:?}") };
    let told: HashMap<&str, String> =
        claim.attributes.iter().map(|told| (told.key.as_str(), told.value.to_string())).collect();
    assert_eq!((told["name"].as_str(), told["behind"].as_str()), ("orders/42", "the other request"));
    assert_eq!(told["ended"], "released");
    assert!(told.contains_key("owner") && told.contains_key("token") && told.contains_key("waited_ms"), "{told:?}");
    println!("waited {} ms behind {:?}, then {}", told["waited_ms"], told["behind"], told["ended"]);
}
