//! Objects in a bucket. Endpoint, region and credentials come from AWS's usual environment variables.
//!
//! Two archivers may share a prefix: their segments overlap, which a restore accepts, and neither
//! overwrites the other's segments.
//!
//! Attempts are limited in time and bytes. Temporary failures are retried ([`super::tries`]): for a long
//! time if the caller would have to start over, briefly if the endpoint has never responded, since its
//! address may be wrong.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path as FilePath;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt, TryFutureExt, TryStreamExt, stream};
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path;
use object_store::{Error, MultipartUpload, ObjectStore, ObjectStoreExt, PutMode};
use tokio::runtime::Handle;

use super::error::{PlaceError, bytes_max};
use super::tries::Tries;
use crate::live_import::say;
use process::files;
use process::log::causes;

pub const SCHEME: &str = "s3://";
/// Size of a part of an upload, and of a download.
const PART_BYTES: usize = 8 << 20;
/// Maximum concurrent parts.
const PARTS_MAX: usize = 2;
/// Timeout of a list request: enough for 16 million names at 4.5 pages of 1,000 per second.
const LIST_TIMEOUT: Duration = Duration::from_secs(3600);
/// Maximum length of an object name that an archiver creates.
const NAME_BYTES_MAX: usize = 64;
/// Timeout for aborting an upload. It delays the exit of the program.
const ABORT_TIMEOUT: Duration = Duration::from_secs(5);

/// A prefix in a bucket.
#[derive(Debug)]
pub struct Bucket {
    brief: Arc<dyn ObjectStore>,
    patient: Arc<dyn ObjectStore>,
    user: User,
    has_answered: AtomicBool,
    prefix: String,
    runtime: Handle,
}

/// User of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// A restore, which starts over after an error.
    Reader,
    /// An archiver, which retries failed operations and checks for signals only between attempts.
    Archiver,
}

impl Bucket {
    /// Opens the bucket at `address`: `s3://BUCKET` or `s3://BUCKET/PREFIX`.
    pub fn open(address: &str, runtime: &Handle, user: User) -> Result<Bucket, PlaceError> {
        let refused = || PlaceError::Address(address.to_owned());
        let rest = address.strip_prefix(SCHEME).ok_or_else(refused)?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err(refused());
        }
        let endpoint = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"]
            .into_iter()
            .find_map(|name| std::env::var(name).ok());
        let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
        if let Some(endpoint) = endpoint {
            builder = builder.with_allow_http(endpoint.starts_with("http://")).with_endpoint(endpoint);
        }
        let is_signed =
            builder.get_config_value(&AmazonS3ConfigKey::SkipSignature).as_deref() != Some("true");
        let store = |tries| connect(builder.clone(), tries).map_err(failed("open", address));
        let (brief, patient) = (store(Tries::BRIEF)?, store(Tries::PATIENT)?);
        if is_signed {
            check_credentials(&brief, address, runtime)?;
        }
        Ok(Bucket::new(Arc::new(brief), Arc::new(patient), user, prefix.trim_end_matches('/'), runtime))
    }

    fn new(
        brief: Arc<dyn ObjectStore>,
        patient: Arc<dyn ObjectStore>,
        user: User,
        prefix: &str,
        runtime: &Handle,
    ) -> Bucket {
        let (prefix, runtime) = (prefix.to_owned(), runtime.clone());
        Bucket { brief, patient, user, has_answered: AtomicBool::new(false), prefix, runtime }
    }

    /// Returns the store that reads use.
    fn store(&self) -> &dyn ObjectStore {
        match self.user == User::Reader && self.has_answered.load(Relaxed) {
            true => &*self.patient,
            false => &*self.brief,
        }
    }

    fn path(&self, name: &str) -> Path {
        match self.prefix.is_empty() {
            true => Path::from(name),
            false => Path::from(format!("{}/{name}", self.prefix)),
        }
    }

    /// Uploads a file. Fails if `stop` completes first.
    pub fn adopt(
        &self,
        draft: &FilePath,
        name: &str,
        stop: impl Future<Output = ()>,
    ) -> Result<(), PlaceError> {
        let io_error = |source| PlaceError::Io { attempt: "send", path: draft.to_owned(), source };
        let file = File::open(draft).map_err(io_error)?;
        let bytes = file.metadata().map_err(io_error)?.len();
        self.runtime.block_on(async {
            let (path, stop) = (self.path(name), stop.shared());
            let begun = self.patient.put_multipart(&path).map_err(failed("make", name));
            let mut upload = before(stop.clone(), begun).await?;
            let sent = before(stop.clone(), send(&mut *upload, file, name, io_error)).await;
            let Err(error) = sent else { return Ok(()) };
            // The response was lost: either all parts exist or none.
            let made = before(stop, self.patient.head(&path).map_err(failed("read", name))).await;
            if made.is_ok_and(|made| made.size == bytes) {
                return Ok(());
            }
            // A bucket retains the parts of an incomplete upload, and lists do not include them.
            let aborted = tokio::time::timeout(ABORT_TIMEOUT, upload.abort()).await;
            let aborted = aborted.map_err(|late| causes(&late));
            if let Err(left) = aborted.and_then(|aborted| aborted.map_err(|error| causes(&error))) {
                say(&format!("parts of {name} may be left: {left}"));
            }
            Err(error)
        })
    }

    pub fn put(&self, name: &str, bytes: Vec<u8>) -> Result<(), PlaceError> {
        self.write(name, bytes, PutMode::Create)
    }

    pub fn replace(&self, name: &str, bytes: Vec<u8>) -> Result<(), PlaceError> {
        self.write(name, bytes, PutMode::Overwrite)
    }

    fn write(&self, name: &str, bytes: Vec<u8>, mode: PutMode) -> Result<(), PlaceError> {
        let path = self.path(name);
        let put = self.brief.put_opts(&path, Bytes::from(bytes).into(), mode.into());
        self.runtime.block_on(put).map(drop).map_err(failed("make", name))
    }

    pub fn list(&self, directory: &str) -> Result<Vec<String>, PlaceError> {
        let path = self.path(directory);
        let name =
            |path: Path| path.filename().map(str::to_owned).filter(|name| name.len() <= NAME_BYTES_MAX);
        let listed = self.store().list(Some(&path));
        let names = listed.try_filter_map(|object| std::future::ready(Ok(name(object.location))));
        let listing = async { tokio::time::timeout(LIST_TIMEOUT, names.try_collect()).await };
        let listed = self.runtime.block_on(listing);
        let listed = listed.unwrap_or_else(|late| Err(Error::Generic { store: "S3", source: late.into() }));
        let mut names: Vec<String> = listed.map_err(failed("list", directory))?;
        self.has_answered.store(true, Relaxed);
        names.sort_unstable();
        Ok(names)
    }

    pub fn get(&self, name: &str) -> Result<Option<Vec<u8>>, PlaceError> {
        let path = self.path(name);
        let found = self.runtime.block_on(self.store().get(&path));
        self.has_answered.fetch_or(matches!(found, Ok(_) | Err(Error::NotFound { .. })), Relaxed);
        let found = match found {
            Err(Error::NotFound { .. }) => return Ok(None),
            found => found.map_err(failed("read", name))?,
        };
        let bytes = found.meta.size;
        if bytes > bytes_max(name) {
            return Err(PlaceError::TooLarge { name: name.to_owned(), bytes });
        }
        let read = self.runtime.block_on(found.bytes()).map_err(failed("read", name))?;
        Ok(Some(read.into()))
    }

    /// Downloads the object to a new file in parts. Failed parts are retried separately.
    pub fn fetch(&self, name: &str, to: &FilePath) -> Result<(), PlaceError> {
        let io_error = |source| PlaceError::Io { attempt: "write", path: to.to_owned(), source };
        let mut file = files::create(to).map_err(io_error)?;
        let path = self.path(name);
        let bytes = self.runtime.block_on(self.store().head(&path)).map_err(failed("read", name))?.size;
        let disk = rustix::fs::fstatvfs(&file).map_err(|errno| io_error(errno.into()))?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        if bytes > free {
            let reason = format!("the object has {bytes} bytes, {free} are free");
            return Err(io_error(io::Error::new(io::ErrorKind::StorageFull, reason)));
        }
        for from in (0..bytes).step_by(PART_BYTES) {
            let range = from..bytes.min(from + PART_BYTES as u64);
            let part =
                self.runtime.block_on(self.store().get_range(&path, range)).map_err(failed("read", name))?;
            file.write_all(&part).map_err(io_error)?;
        }
        Ok(())
    }

    pub fn remove(&self, name: &str) -> Result<(), PlaceError> {
        let path = self.path(name);
        self.runtime.block_on(self.brief.delete(&path)).map_err(failed("remove", name))
    }
}

fn connect(builder: AmazonS3Builder, tries: Tries) -> Result<AmazonS3, Error> {
    builder.with_retry(tries.retry_config()).with_http_connector(tries).build()
}

/// Checks that credentials can be loaded. Without credentials in the environment, the client queries the
/// instance metadata service, and each call would fail with its error.
fn check_credentials(store: &AmazonS3, address: &str, runtime: &Handle) -> Result<(), PlaceError> {
    let found = runtime.block_on(store.credentials().get_credential());
    let failed = |source| PlaceError::Credentials { address: address.to_owned(), source: Box::new(source) };
    found.map(drop).map_err(failed)
}

/// Uploads all parts of a file, and completes the upload.
async fn send(
    upload: &mut dyn MultipartUpload,
    mut file: File,
    name: &str,
    io_error: impl Fn(io::Error) -> PlaceError,
) -> Result<(), PlaceError> {
    let parts = std::iter::from_fn(|| {
        let mut part = Vec::new();
        match (&mut file).take(PART_BYTES as u64).read_to_end(&mut part) {
            Ok(0) => None,
            read => Some(read.map(|_| part).map_err(&io_error)),
        }
    });
    let sent = stream::iter(parts).map_ok(|part| upload.put_part(part.into()).map_err(failed("write", name)));
    sent.try_buffer_unordered(PARTS_MAX).try_collect::<()>().await?;
    upload.complete().map_ok(drop).await.map_err(failed("write", name))
}

/// Returns the result of `work`, unless `stop` completes first.
async fn before<T>(
    stop: impl Future<Output = ()>,
    work: impl Future<Output = Result<T, PlaceError>>,
) -> Result<T, PlaceError> {
    tokio::select! {
        biased;
        () = stop => Err(PlaceError::Stopped),
        done = work => done,
    }
}

fn failed(attempt: &'static str, name: &str) -> impl FnOnce(Error) -> PlaceError {
    let name = name.to_owned();
    move |source| PlaceError::Bucket { attempt, name, source: Box::new(source) }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Mutex;

    use axum::Router;
    use axum::body::{Body, to_bytes};
    use axum::extract::Request;
    use axum::http::Response;
    use futures_util::StreamExt;
    use object_store::memory::InMemory;
    use tokio::runtime::Runtime;
    use tokio::sync::mpsc;

    use super::super::ArchivePlace;
    use super::*;

    fn of_memory(store: &Arc<dyn ObjectStore>, prefix: &str, runtime: &Runtime) -> Bucket {
        Bucket::new(Arc::clone(store), Arc::clone(store), User::Archiver, prefix, runtime.handle())
    }

    #[test]
    fn objects_of_a_prefix_are_made_once_listed_and_fetched() {
        let runtime = Runtime::new().unwrap();
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let bucket = of_memory(&store, "a/b", &runtime);
        let other = of_memory(&store, "", &runtime);
        bucket.put("log/1", b"one".to_vec()).unwrap();
        bucket.put("log/1", b"two".to_vec()).unwrap_err();
        bucket.replace("head.json", b"1".to_vec()).unwrap();
        bucket.replace("head.json", b"2".to_vec()).unwrap();
        other.put("log/2", b"other".to_vec()).unwrap();
        assert_eq!(bucket.get("head.json").unwrap().as_deref(), Some(&b"2"[..]));
        assert_eq!(
            (bucket.list("log").unwrap(), other.list("log").unwrap()),
            (vec!["1".into()], vec!["2".into()])
        );
        let directory = tempfile::tempdir().unwrap();
        let (draft, fetched) = (directory.path().join("draft"), directory.path().join("fetched"));
        let large = vec![7; 3 * PART_BYTES + 5];
        std::fs::write(&draft, &large).unwrap();
        bucket.adopt(&draft, "base/x", std::future::pending()).unwrap();
        bucket.fetch("base/x", &fetched).unwrap();
        assert!(std::fs::read(&fetched).unwrap() == large);
        bucket.remove("base/x").unwrap();
        assert_eq!((bucket.get("base/x").unwrap(), bucket.list("base").unwrap()), (None, Vec::new()));
    }

    #[test]
    fn an_object_is_made_by_the_next_try_if_an_answer_was_lost() {
        let (runtime, directory) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
        let local = ArchivePlace::take(directory.path().to_str().unwrap(), runtime.handle()).unwrap();
        let bucket = of_memory(&(Arc::new(InMemory::new()) as _), "", &runtime);
        for place in [local, ArchivePlace::Bucket(bucket)] {
            for (bytes, is_made) in [(b"one", true), (b"one", true), (b"two", false)] {
                assert_eq!(place.put("log/1", bytes).unwrap(), is_made, "{place:?}");
            }
            assert_eq!(place.get("log/1").unwrap().as_deref(), Some(&b"one"[..]));
            // The segment may have been removed manually.
            place.remove("log/1").unwrap();
            place.remove("log/1").unwrap();
        }
    }

    /// Returns a bucket served by `router`.
    fn stub(runtime: &Runtime, router: Router) -> Bucket {
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        runtime.spawn(async { axum::serve(listener, router).await });
        at(&endpoint, runtime)
    }

    fn at(endpoint: &str, runtime: &Runtime) -> Bucket {
        let builder = AmazonS3Builder::new().with_bucket_name("b").with_region("r").with_endpoint(endpoint);
        let builder = builder.with_access_key_id("a").with_secret_access_key("s").with_allow_http(true);
        let store = |tries| Arc::new(connect(builder.clone(), tries).unwrap());
        Bucket::new(store(Tries::QUICK_AND_BRIEF), store(Tries::QUICK), User::Reader, "", runtime.handle())
    }

    /// Responds with 500 to the completion of an upload, and drops the upload.
    async fn lose(upload: Arc<Mutex<(Vec<u8>, bool)>>, is_kept: bool, request: Request) -> Response<Body> {
        let (head, body) = request.into_parts();
        let body = to_bytes(body, usize::MAX).await.unwrap();
        let (object, is_complete) = &mut *upload.lock().unwrap();
        let (status, answer) = match (head.method.as_str(), head.uri.query()) {
            ("POST", Some("uploads=")) => {
                (200, "<U><Bucket>b</Bucket><Key>k</Key><UploadId>1</UploadId></U>".into())
            }
            ("PUT", Some(_)) => {
                object.extend(body);
                (200, Vec::new())
            }
            ("POST", Some(_)) if !*is_complete => {
                *is_complete = true;
                (500, Vec::new())
            }
            ("HEAD", None) if *is_complete && is_kept => (200, object.clone()),
            _ => (404, Vec::new()),
        };
        let response = Response::builder().status(status).header("ETag", "e");
        response.header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT").body(answer.into()).unwrap()
    }

    #[test]
    fn an_upload_is_made_if_the_answer_was_lost_and_the_object_is_there() {
        let (runtime, directory) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
        let draft = directory.path().join("draft");
        std::fs::write(&draft, "whole").unwrap();
        for is_kept in [true, false] {
            let upload = Arc::default();
            let router = Router::new().fallback(move |request| lose(Arc::clone(&upload), is_kept, request));
            let made = stub(&runtime, router).adopt(&draft, "base/x", std::future::pending());
            assert_eq!(made.is_ok(), is_kept, "{made:?}");
        }
    }

    #[test]
    fn an_upload_that_fails_leaves_no_parts() {
        let (runtime, directory) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
        let draft = directory.path().join("draft");
        std::fs::write(&draft, "whole").unwrap();
        let methods = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&methods);
        let answer = async move |request: Request| {
            let method = request.method().to_string();
            let (status, body) = match method.as_str() {
                "POST" => (200, "<U><Bucket>b</Bucket><Key>k</Key><UploadId>1</UploadId></U>"),
                "DELETE" => (204, ""),
                "HEAD" => (404, ""),
                _ => (400, ""),
            };
            seen.lock().unwrap().push(method);
            Response::builder().status(status).body(Body::from(body)).unwrap()
        };
        let bucket = stub(&runtime, Router::new().fallback(answer));
        bucket.adopt(&draft, "base/x", std::future::pending()).unwrap_err();
        assert_eq!(*methods.lock().unwrap(), ["POST", "PUT", "HEAD", "DELETE"]);
    }

    /// Returns the response to the attempt `count` of a request, starting at 0.
    async fn answer(count: usize, request: Request) -> Response<Body> {
        let (method, range) = (request.method().as_str(), request.headers().get("Range"));
        let from = range.map_or("0", |range| range.to_str().unwrap()).trim_start_matches("bytes=");
        let from: usize = from.split('-').next().unwrap().parse().unwrap();
        let response = Response::builder().header("ETag", "e");
        let response = response.header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT");
        let (response, body) = match (count, method) {
            (0, _) => std::future::pending().await,
            (..=14, _) => (response.status(503), Body::empty()),
            (15, "GET") if from == 0 => {
                let parts = [Ok("wh"), Err(io::Error::other("cut"))];
                (response.header("Content-Length", 5), Body::from_stream(stream::iter(parts)))
            }
            (_, "GET") if range.is_some() => {
                let response = response.status(206).header("Content-Range", format!("bytes {from}-4/5"));
                (response, "whole"[from..].into())
            }
            (_, "GET" | "HEAD") => (response, "whole".into()),
            (_, "POST") => (response, "<U><Bucket>b</Bucket><Key>k</Key><UploadId>1</UploadId></U>".into()),
            _ => (response, Body::empty()),
        };
        response.body(body).unwrap()
    }

    #[test]
    fn a_try_that_fails_for_a_reason_that_may_pass_is_made_again() {
        let (runtime, directory) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
        let (draft, fetched) = (directory.path().join("draft"), directory.path().join("fetched"));
        std::fs::write(&draft, "whole").unwrap();
        let counts = Arc::new(Mutex::new(HashMap::new()));
        let router = Router::new().fallback(move |request: Request| {
            let what = (request.method().clone(), request.uri().clone());
            let mut counts = counts.lock().unwrap();
            let count: &mut usize = counts.entry(what).or_default();
            *count += 1;
            answer(*count - 1, request)
        });
        let bucket = stub(&runtime, router);
        // A restore lists the bases first.
        bucket.has_answered.store(true, Relaxed);
        assert_eq!(bucket.get("log/1").unwrap().as_deref(), Some(&b"whole"[..]));
        bucket.fetch("base/1", &fetched).unwrap();
        assert_eq!(std::fs::read(&fetched).unwrap(), b"whole");
        bucket.adopt(&draft, "base/2", std::future::pending()).unwrap();
    }

    /// Returns an endless body in pieces of `piece_bytes`, with a pause before each piece.
    fn endless(piece_bytes: usize, pause: Duration) -> Body {
        Body::from_stream(stream::repeat(Bytes::from(vec![b' '; piece_bytes])).then(
            move |piece| async move {
                tokio::time::sleep(pause).await;
                Ok::<_, io::Error>(piece)
            },
        ))
    }

    /// Returns an empty page of a list with a continuation token.
    fn page(next: usize) -> Body {
        let next = format!("<NextContinuationToken>{next}</NextContinuationToken>");
        format!("<L><IsTruncated>true</IsTruncated>{next}</L>").into()
    }

    #[test]
    fn a_list_without_end_is_an_error() {
        let runtime = Runtime::new().unwrap();
        let pause = Duration::from_millis(20);
        type MakeBody = fn(usize, Duration) -> Body;
        let cases: [(&str, MakeBody); 4] = [
            ("does not advance", |_, _| page(7)),
            ("more than 64 pages", |count, _| page(count)),
            ("longer than 16777216 bytes", |_, _| endless(1 << 16, Duration::ZERO)),
            ("less than 32 KiB/s", |_, pause| endless(1, pause)),
        ];
        for (wanted, body) in cases {
            let count = Arc::new(Mutex::new(0));
            let router = Router::new().fallback(async move || {
                *count.lock().unwrap() += 1;
                Response::new(body(*count.lock().unwrap(), pause))
            });
            let error = causes(&stub(&runtime, router).list("base").unwrap_err());
            assert!(error.contains(wanted), "{wanted}: {error}");
        }
    }

    #[test]
    fn a_list_continues_where_a_page_failed() {
        let runtime = Runtime::new().unwrap();
        let last = "<L><IsTruncated>false</IsTruncated><Contents><Key>base/1</Key><Size>1</Size>\
                    <LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents></L>";
        let count = Arc::new(Mutex::new(0));
        let router = Router::new().fallback(async move || {
            *count.lock().unwrap() += 1;
            match *count.lock().unwrap() {
                2 => Response::builder().status(503).body(Body::empty()).unwrap(),
                count if count < 10 => Response::new(page(count)),
                _ => Response::new(Body::from(last)),
            }
        });
        assert_eq!(stub(&runtime, router).list("base").unwrap(), ["1"]);
    }

    #[test]
    fn an_error_without_end_is_not_read() {
        let runtime = Runtime::new().unwrap();
        let router = Router::new().fallback(async || {
            let response = Response::builder().status(403);
            response.body(endless(1 << 16, Duration::ZERO)).unwrap()
        });
        let error = causes(&stub(&runtime, router).get("log/1").unwrap_err());
        assert!(error.contains("longer than 16777216 bytes"), "{error}");
    }

    #[test]
    fn an_object_that_is_longer_than_it_may_be_is_not_read() {
        let (runtime, directory) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
        let answer = async |request: Request| {
            let bytes = match request.uri().path() {
                "/b/head.json" => 65 << 10,
                "/b/log/1" => (2 << 30) + 1,
                _ => 1_u64 << 62,
            };
            let response = Response::builder().header("ETag", "e").header("Content-Length", bytes);
            let response = response.header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT");
            let is_head = request.method() == "HEAD";
            response.body(if is_head { Body::empty() } else { endless(1, Duration::MAX) }).unwrap()
        };
        let bucket = stub(&runtime, Router::new().fallback(answer));
        for name in ["head.json", "log/1"] {
            let refused = bucket.get(name).unwrap_err();
            assert!(matches!(refused, PlaceError::TooLarge { .. }), "{name}: {refused}");
        }
        let refused = causes(&bucket.fetch("base/1", &directory.path().join("fetched")).unwrap_err());
        assert!(refused.contains("the object has 4611686018427387904 bytes"), "{refused}");
    }

    #[test]
    fn a_redirect_is_an_error_that_names_the_target() {
        let runtime = Runtime::new().unwrap();
        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let target = format!("http://{}/stolen", other.local_addr().unwrap());
        let location = target.clone();
        let router = Router::new().fallback(async move || {
            Response::builder().status(307).header("Location", location).body(Body::empty()).unwrap()
        });
        let error = causes(&stub(&runtime, router).list("base").unwrap_err());
        assert!(error.contains(&target), "{error}");
        other.set_nonblocking(true).unwrap();
        assert!(other.accept().is_err(), "the target was contacted");
    }

    #[test]
    fn a_reader_of_a_mistyped_endpoint_has_an_error_soon() {
        let runtime = Runtime::new().unwrap();
        let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let bucket = at(&format!("http://{unused}"), &runtime);
        let began = std::time::Instant::now();
        let error = causes(&bucket.list("base").unwrap_err());
        assert!(error.contains(&unused.to_string()), "{error}");
        assert!(began.elapsed() < Duration::from_secs(60), "a place that has answered is tried for 300 s");
    }

    #[test]
    fn missing_credentials_are_named_by_their_variables() {
        let runtime = Runtime::new().unwrap();
        let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let builder = AmazonS3Builder::new().with_bucket_name("b").with_region("r");
        let keyless = builder.clone().with_metadata_endpoint(format!("http://{unused}"));
        let keyless = connect(keyless.with_allow_http(true), Tries::QUICK_AND_BRIEF).unwrap();
        let error = check_credentials(&keyless, "s3://b", runtime.handle()).unwrap_err();
        assert!(!error.may_pass());
        let wanted = "no credentials for s3://b: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY";
        assert!(error.to_string().starts_with(wanted), "{error}");
        let with_keys = builder.with_access_key_id("a").with_secret_access_key("s");
        let with_keys = connect(with_keys, Tries::QUICK_AND_BRIEF).unwrap();
        check_credentials(&with_keys, "s3://b", runtime.handle()).unwrap();
    }

    #[test]
    fn an_upload_that_is_stopped_leaves_no_parts() {
        let (runtime, directory) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
        let draft = directory.path().join("draft");
        std::fs::write(&draft, "whole").unwrap();
        let (sender, mut methods) = mpsc::unbounded_channel();
        let answer = async move |request: Request| {
            sender.send(request.method().to_string()).unwrap();
            let (status, body) = match request.method().as_str() {
                "POST" => (200, "<U><Bucket>b</Bucket><Key>k</Key><UploadId>1</UploadId></U>"),
                "DELETE" => (204, ""),
                _ => std::future::pending().await,
            };
            Response::builder().status(status).body(Body::from(body)).unwrap()
        };
        let bucket = stub(&runtime, Router::new().fallback(answer));
        let stop = async {
            assert_eq!(
                [methods.recv().await, methods.recv().await],
                ["POST", "PUT"].map(|m| Some(m.to_owned()))
            );
        };
        let stopped = bucket.adopt(&draft, "base/x", stop);
        assert!(matches!(stopped, Err(PlaceError::Stopped)), "{stopped:?}");
        assert_eq!(methods.try_recv().unwrap(), "DELETE");
    }

    #[test]
    fn an_address_names_a_bucket() {
        let runtime = Runtime::new().unwrap();
        for address in ["s3://", "s3:///prefix", "s3:/b", "S3://b/x", "s3//b", "s3:b", "gs://b", "file:///d"]
        {
            let error = ArchivePlace::take(address, runtime.handle()).unwrap_err();
            assert!(error.to_string().contains("is not s3://BUCKET"), "{error}");
        }
    }
}
