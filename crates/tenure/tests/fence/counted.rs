//! What is refused as stale is counted by the first segment of the resource's name.

use metrics_exporter_prometheus::PrometheusBuilder;
use tenure::Shape::{Exclusive, Shared};
use tenure::fence::Gate;
use tenure_testkit::servers::shared;

use crate::resource::{InProcess, Op, Resource, connect, fence, in_redis, in_sqlite, postgres_url};

async fn refuse(mut resource: impl Resource) {
    let name = "stock/counted";
    resource.run(name, Op::Write, &fence(2, "a", Exclusive)).await.unwrap();
    for op in [Op::Look, Op::Read, Op::Write] {
        resource.run(name, op, &fence(1, "b", Exclusive)).await.unwrap_err();
    }
    // Nobody is stale here.
    resource.run(name, Op::Write, &fence(3, "a", Shared)).await.unwrap_err();
}

#[test]
fn every_fence_counts_what_it_refuses() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _here = metrics::set_default_local_recorder(&recorder);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut expected = 0;
    let mut counted = |resource: &str| {
        expected += 3;
        let line = format!("tenure_fence_refused_total{{resource=\"stock\"}} {expected}");
        let seen = recorder.handle().render();
        assert!(seen.lines().any(|seen| seen == line), "{resource}: {line}: {seen}");
    };
    runtime.block_on(refuse(InProcess("stock/counted".into(), Gate::new(()).named("stock"))));
    counted("a gate");
    runtime.block_on(refuse(in_sqlite()));
    counted("SQLite");
    runtime.block_on(async { refuse(connect(postgres_url()).await).await });
    counted("PostgreSQL");
    runtime.block_on(async { refuse(in_redis(shared::redis().url()).await).await });
    counted("Redis");
}
