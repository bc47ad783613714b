//! One connection to one member.

use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::Stream;
use prost::Message;
use tokio::sync::Notify;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::codegen::Service as _;
use tonic::codegen::http;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::date;
use super::error::unconnected;
use super::url::{Login, Member};
use super::wire::{
    AlarmResponse, Answered, AuthenticateRequest, AuthenticateResponse, Header, KeepAliveResponse, LeaseGrantRequest,
    LeaseGrantResponse, LeaseId, LeaseRevokeResponse, MembersResponse, Nothing, RangeRequest, RangeResponse,
    StatusResponse, TimeToLiveRequest, TimeToLiveResponse, TxnRequest, TxnResponse, WatchRequest, WatchResponse,
};
use crate::clock::{Clock, Moment};

/// How long a member may take to answer. It is then left for another one.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(3);
/// How long connecting may take.
pub(super) const CONNECT_MAX: Duration = Duration::from_secs(2);
/// A queue of ten thousand claims, read at once, is larger than what gRPC allows by itself.
const MESSAGE_MAX: usize = 64 << 20;

#[derive(Debug)]
pub(super) struct Link {
    channel: Channel,
    address: String,
    login: Option<MetadataValue<Ascii>>,
    /// What the latest answer said that the whole cluster stands behind: who answered, and in which term.
    seen: Mutex<Option<Header>>,
    /// A key that nobody has, among those that the user may read.
    probe: Vec<u8>,
    left: AtomicBool,
    leaving: Notify,
    clock: Arc<dyn Clock>,
    requests: Silence,
    /// Told apart, for the member may answer everything else and not reach the leader with these.
    keep_alives: Silence,
}

impl Link {
    /// Connects and logs in, and makes sure that the member speaks for the cluster.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is changed.
    pub(super) async fn open(
        member: &Member,
        login: Option<&Login>,
        probe: Vec<u8>,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Self>, Status> {
        let speaks = async {
            let link = Box::pin(Self::dial(member, login, probe, clock)).await?;
            link.look().await?;
            Ok(link)
        };
        limited(CONNECT_MAX, speaks).await
    }

    /// Connects and logs in.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is changed.
    pub(super) async fn dial(
        member: &Member,
        login: Option<&Login>,
        probe: Vec<u8>,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Self>, Status> {
        let connected = async {
            let endpoint = member.endpoint.clone().connect_timeout(CONNECT_MAX);
            let channel = endpoint.connect().await.map_err(|error| unconnected(&error))?;
            let mut link = Self {
                channel,
                address: member.address.clone(),
                login: None,
                seen: Mutex::new(None),
                probe,
                left: AtomicBool::new(false),
                leaving: Notify::new(),
                requests: Silence::default(),
                keep_alives: Silence::default(),
                clock,
            };
            if let Some(login) = login {
                let request = AuthenticateRequest { name: login.user.clone(), password: login.password.clone() };
                let answer: AuthenticateResponse = link.call("/etcdserverpb.Auth/Authenticate", request).await?;
                let token = answer.token.parse().map_err(|_| Status::internal("etcd gave a token that is none"))?;
                link.login = Some(token);
            }
            Ok(Arc::new(link))
        };
        limited(CONNECT_MAX, connected).await
    }

    /// No longer used: whoever listens here must listen elsewhere. True if that is news.
    pub(super) fn leave(&self) -> bool {
        let news = !self.left.swap(true, Ordering::AcqRel);
        self.leaving.notify_waiters();
        news
    }

    pub(super) fn is_left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }

    /// Resolves when the link is no longer used.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a link that is left stays so.
    pub(super) async fn leaving(&self) {
        let mut told = std::pin::pin!(self.leaving.notified());
        told.as_mut().enable();
        if !self.is_left() {
            told.await;
        }
    }

    /// Whether something was asked so long ago, and nothing answered since.
    pub(super) fn is_silent(&self, now: Moment, for_at_least: Duration) -> bool {
        [&self.requests, &self.keep_alives].iter().any(|silence| silence.lasts(now) >= for_at_least)
    }

    /// Waits for an answer, and remembers that none came if the wait is given up.
    async fn answered<T>(
        &self,
        silence: &Silence,
        answer: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        silence.begins(self.clock.now());
        let answer = limited(ANSWER_MAX, answer).await;
        silence.ends();
        answer
    }

    /// The latest answer that the whole cluster stands behind.
    pub(super) fn seen(&self) -> Option<Header> {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn see(&self, header: Header) {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(header);
    }

    fn ask<Q>(&self, message: Q) -> Request<Q> {
        let mut request = Request::new(message);
        // A member that has no leader says so at once, instead of waiting for one.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        if let Some(login) = &self.login {
            request.metadata_mut().insert("token", login.clone());
        }
        request
    }

    fn grpc(&self) -> Grpc<Channel> {
        Grpc::new(self.channel.clone()).max_decoding_message_size(MESSAGE_MAX)
    }

    async fn call<Q, A>(&self, path: &'static str, message: Q) -> Result<A, Status>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        self.send(path, self.ask(message)).await
    }

    async fn send<Q, A>(&self, path: &'static str, request: Request<Q>) -> Result<A, Status>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let mut grpc = self.grpc();
        let answered = async move {
            grpc.ready().await.map_err(|error| unconnected(&error))?;
            let codec: ProstCodec<Q, A> = ProstCodec::default();
            Ok(grpc.unary(request, PathAndQuery::from_static(path), codec).await?.into_inner())
        };
        self.answered(&self.requests, answered).await
    }

    /// An answer that the cluster stands behind.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only looks.
    pub(super) async fn look(&self) -> Result<Header, Status> {
        let nobodys = RangeRequest { key: self.probe.clone(), ..RangeRequest::default() };
        self.range(nobodys).await.map(|answer| answer.header())
    }

    /// # Cancel safety
    ///
    /// Cancel safe: it only looks.
    pub(super) async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Status> {
        let answer: RangeResponse = self.call("/etcdserverpb.KV/Range", request).await?;
        self.see(answer.header());
        Ok(answer)
    }

    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown.
    pub(super) async fn txn(&self, request: TxnRequest) -> Result<TxnResponse, Status> {
        let answer: TxnResponse = self.call("/etcdserverpb.KV/Txn", request).await?;
        self.see(answer.header());
        Ok(answer)
    }

    /// # Cancel safety
    ///
    /// Cancelling may leave a lease that nobody uses; it ends after its ttl.
    pub(super) async fn grant(&self, seconds: i64) -> Result<LeaseGrantResponse, Status> {
        self.call("/etcdserverpb.Lease/LeaseGrant", LeaseGrantRequest { ttl: seconds, id: 0 }).await
    }

    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown.
    pub(super) async fn revoke(&self, id: i64) -> Result<(), Status> {
        self.call::<_, LeaseRevokeResponse>("/etcdserverpb.Lease/LeaseRevoke", LeaseId { id }).await.map(drop)
    }

    /// Keep-alives: a stream of so many requests, and of an answer to each, in order.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: at worst the leases live longer.
    pub(super) async fn keep_alive(&self, ids: &[i64]) -> Result<Vec<KeepAliveResponse>, Status> {
        let mut grpc = self.grpc();
        let requests: Vec<LeaseId> = ids.iter().map(|id| LeaseId { id: *id }).collect();
        let request = self.ask(futures_util::stream::iter(requests));
        let answered = async move {
            grpc.ready().await.map_err(|error| unconnected(&error))?;
            let codec: ProstCodec<LeaseId, KeepAliveResponse> = ProstCodec::default();
            let path = PathAndQuery::from_static("/etcdserverpb.Lease/LeaseKeepAlive");
            let mut stream = grpc.streaming(request, path, codec).await?.into_inner();
            let mut answers = Vec::with_capacity(ids.len());
            for id in ids {
                let answer = stream.message().await?.filter(|answer: &KeepAliveResponse| answer.id == *id);
                answers.push(answer.ok_or_else(|| Status::unavailable("a keep-alive was not answered"))?);
            }
            Ok(answers)
        };
        self.answered(&self.keep_alives, answered).await
    }

    /// # Cancel safety
    ///
    /// Cancel safe: it only looks.
    pub(super) async fn time_to_live(&self, id: i64, keys: bool) -> Result<TimeToLiveResponse, Status> {
        self.call("/etcdserverpb.Lease/LeaseTimeToLive", TimeToLiveRequest { id, keys }).await
    }

    /// # Cancel safety
    ///
    /// Cancel safe: it only looks.
    pub(super) async fn status(&self) -> Result<StatusResponse, Status> {
        // Of a member without a leader too.
        let mut request = self.ask(Nothing {});
        request.metadata_mut().remove("hasleader");
        self.send("/etcdserverpb.Maintenance/Status", request).await
    }

    /// # Cancel safety
    ///
    /// Cancel safe: it only looks.
    pub(super) async fn alarms(&self) -> Result<AlarmResponse, Status> {
        self.call("/etcdserverpb.Maintenance/Alarm", Nothing {}).await
    }

    /// # Cancel safety
    ///
    /// Cancel safe: it only looks.
    pub(super) async fn members(&self) -> Result<MembersResponse, Status> {
        self.call("/etcdserverpb.Cluster/MemberList", Nothing {}).await
    }

    /// The `Date` of the member's answer over HTTP; none if it answers without.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only looks.
    pub(super) async fn date(&self, tls: bool) -> Result<Option<String>, Status> {
        if !tls {
            return limited(CONNECT_MAX, date::ask_plainly(&self.address)).await;
        }
        // Within TLS the member tells gRPC from all else by what is asked, so that this connection will do.
        let mut channel = self.channel.clone();
        let answered = async move {
            let question = http::Request::get(date::PATH).body(Body::empty());
            let question = question.map_err(|error| Status::internal(error.to_string()))?;
            poll_fn(|cx| channel.poll_ready(cx)).await.map_err(|error| unconnected(&error))?;
            let answer = channel.call(question).await.map_err(|error| unconnected(&error))?;
            let date = answer.headers().get(http::header::DATE).and_then(|date| date.to_str().ok());
            Ok(date.map(str::to_owned))
        };
        limited(CONNECT_MAX, answered).await
    }

    /// Opens a stream of watches.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a stream that is not finished is closed.
    pub(super) async fn watch(
        &self,
        commands: impl Stream<Item = WatchRequest> + Send + 'static,
    ) -> Result<Streaming<WatchResponse>, Status> {
        let mut grpc = self.grpc();
        let request = self.ask(commands);
        let opened = async move {
            grpc.ready().await.map_err(|error| unconnected(&error))?;
            let codec: ProstCodec<WatchRequest, WatchResponse> = ProstCodec::default();
            let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
            Ok(grpc.streaming(request, path, codec).await?.into_inner())
        };
        limited(ANSWER_MAX, opened).await
    }
}

/// Since when nothing is answered.
#[derive(Debug, Default)]
struct Silence {
    /// When the first request was sent that no answer has followed, also if nobody waits for it any more; zero if
    /// there is none.
    since: AtomicU64,
}

impl Silence {
    fn begins(&self, now: Moment) {
        // The first of those that wait tells since when.
        let _ = self.since.compare_exchange(0, now.as_micros().max(1), Ordering::AcqRel, Ordering::Acquire);
    }

    fn ends(&self) {
        self.since.store(0, Ordering::Release);
    }

    fn lasts(&self, now: Moment) -> Duration {
        match self.since.load(Ordering::Acquire) {
            0 => Duration::ZERO,
            since => now.since(Moment(since)),
        }
    }
}

async fn limited<T>(limit: Duration, answer: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let late = |_| Err(Status::deadline_exceeded("no answer in time"));
    tokio::time::timeout(limit, answer).await.unwrap_or_else(late)
}
