//! Objects in a bucket. Endpoint, region and credentials come from the environment, by the names that AWS's
//! tools use.
//!
//! Two archivers at one prefix are not kept apart: their segments overlap, which a restore takes, and no
//! segment of one replaces one of the other.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{TryFutureExt, TryStreamExt, stream};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path;
use object_store::{
    ClientConfigKey, Error, MultipartUpload, ObjectStore, ObjectStoreExt, PutMode, PutOptions,
};
use tokio::runtime::Handle;

use super::error::{OBJECT_BYTES_MAX, PlaceError};
use crate::live_import::say;
use process::files;
use process::log::causes;

pub const SCHEME: &str = "s3://";
/// Of a file that is sent, and of one that is fetched.
const PART_BYTES: usize = 8 << 20;
/// Parts that are under way at once.
const PARTS_MAX: usize = 4;
/// Time for a request, and in addition what its body takes over the slowest line that is served.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
const BYTES_PER_SECOND_MIN: u64 = 64 << 10;

/// A prefix in a bucket.
#[derive(Debug)]
pub struct Bucket {
    store: Arc<dyn ObjectStore>,
    prefix: String,
    runtime: Handle,
}

impl Bucket {
    /// `address`: `s3://BUCKET` or `s3://BUCKET/PREFIX`.
    pub fn open(address: &str, runtime: &Handle) -> Result<Bucket, PlaceError> {
        let refused = || PlaceError::Address(address.to_owned());
        let rest = address.strip_prefix(SCHEME).ok_or_else(refused)?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err(refused());
        }
        let endpoint = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"]
            .into_iter()
            .find_map(|name| std::env::var(name).ok());
        // One limit for all requests would be too long for a small one, or too short for a large one.
        let timeout = AmazonS3ConfigKey::Client(ClientConfigKey::Timeout);
        let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket).with_config(timeout, "1 day");
        if let Some(endpoint) = endpoint {
            builder = builder.with_allow_http(endpoint.starts_with("http://")).with_endpoint(endpoint);
        }
        let store = builder.build().map_err(failed("open", address))?;
        Ok(Bucket::new(Arc::new(store), prefix.trim_end_matches('/'), runtime))
    }

    fn new(store: Arc<dyn ObjectStore>, prefix: &str, runtime: &Handle) -> Bucket {
        Bucket { store, prefix: prefix.to_owned(), runtime: runtime.clone() }
    }

    fn path(&self, name: &str) -> Path {
        match self.prefix.is_empty() {
            true => Path::from(name),
            false => Path::from(format!("{}/{name}", self.prefix)),
        }
    }

    /// Sends a file.
    pub fn adopt(&self, draft: &FilePath, name: &str) -> Result<(), PlaceError> {
        let io_error = |source| PlaceError::Io { attempt: "send", path: draft.to_owned(), source };
        let file = File::open(draft).map_err(io_error)?;
        let bytes = file.metadata().map_err(io_error)?.len();
        self.runtime.block_on(async {
            let path = self.path(name);
            let begun = within(0, self.store.put_multipart(&path)).await;
            let mut upload = begun.map_err(failed("make", name))?;
            let Err(error) = send(&mut *upload, file, bytes, name, io_error).await else { return Ok(()) };
            // An answer was lost: all parts are there, or none.
            if within(0, self.store.head(&path)).await.is_ok_and(|made| made.size == bytes) {
                return Ok(());
            }
            // No list shows the parts of an upload that is not completed, and a bucket keeps them.
            if let Err(left) = within(0, upload.abort()).await {
                say(&format!("parts of {name} may be left: {}", causes(&left)));
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
        let (path, options, len) = (self.path(name), PutOptions::from(mode), bytes.len() as u64);
        let put = self.store.put_opts(&path, Bytes::from(bytes).into(), options);
        self.runtime.block_on(within(len, put)).map(drop).map_err(failed("make", name))
    }

    pub fn list(&self, directory: &str) -> Result<Vec<String>, PlaceError> {
        let path = self.path(directory);
        let mut listed = self.store.list(Some(&path));
        let mut names = Vec::new();
        self.runtime.block_on(async {
            while let Some(object) = within(0, listed.try_next()).await.map_err(failed("list", directory))? {
                names.extend(object.location.filename().map(str::to_owned));
            }
            Ok(())
        })?;
        names.sort_unstable();
        Ok(names)
    }

    pub fn get(&self, name: &str) -> Result<Option<Vec<u8>>, PlaceError> {
        let path = self.path(name);
        let found = match self.runtime.block_on(within(0, self.store.get(&path))) {
            Err(Error::NotFound { .. }) => return Ok(None),
            found => found.map_err(failed("read", name))?,
        };
        let bytes = found.meta.size;
        if bytes > OBJECT_BYTES_MAX {
            return Err(PlaceError::TooLarge { name: name.to_owned(), bytes });
        }
        let read = self.runtime.block_on(within(bytes, found.bytes())).map_err(failed("read", name))?;
        Ok(Some(read.to_vec()))
    }

    /// Writes the object to a new file, part by part: each may be tried again.
    pub fn fetch(&self, name: &str, to: &FilePath) -> Result<(), PlaceError> {
        let io_error = |source| PlaceError::Io { attempt: "write", path: to.to_owned(), source };
        let mut file = files::create(to).map_err(io_error)?;
        self.runtime.block_on(async {
            let path = self.path(name);
            let bytes = within(0, self.store.head(&path)).await.map_err(failed("read", name))?.size;
            for from in (0..bytes).step_by(PART_BYTES) {
                let range = from..bytes.min(from + PART_BYTES as u64);
                let part = within(PART_BYTES as u64, self.store.get_range(&path, range)).await;
                file.write_all(&part.map_err(failed("read", name))?).map_err(io_error)?;
            }
            Ok(())
        })
    }

    pub fn remove(&self, name: &str) -> Result<(), PlaceError> {
        let path = self.path(name);
        self.runtime.block_on(within(0, self.store.delete(&path))).map_err(failed("remove", name))
    }
}

/// Sends all parts of a file, and completes the upload.
async fn send(
    upload: &mut dyn MultipartUpload,
    mut file: File,
    bytes: u64,
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
    let sent = stream::iter(parts).map_ok(|part| {
        let sent = within((PARTS_MAX * PART_BYTES) as u64, upload.put_part(part.into()));
        sent.map_err(failed("write", name))
    });
    sent.try_buffer_unordered(PARTS_MAX).try_collect::<()>().await?;
    within(bytes, upload.complete()).map_ok(drop).await.map_err(failed("write", name))
}

/// What a request gives in the time that its bytes take.
async fn within<T>(bytes: u64, request: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let limit = ANSWER_WITHIN + Duration::from_secs(bytes / BYTES_PER_SECOND_MIN);
    let late = |_| Error::Generic { store: "S3", source: format!("no answer within {limit:?}").into() };
    tokio::time::timeout(limit, request).await.map_err(late)?
}

fn failed(attempt: &'static str, name: &str) -> impl FnOnce(Error) -> PlaceError {
    let name = name.to_owned();
    move |source| PlaceError::Bucket { attempt, name, source: Box::new(source) }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use axum::Router;
    use axum::body::{Body, to_bytes};
    use axum::extract::Request;
    use axum::http::Response;
    use object_store::memory::InMemory;

    use super::super::ArchivePlace;
    use super::*;

    #[test]
    fn objects_of_a_prefix_are_made_once_listed_and_fetched() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let bucket = Bucket::new(Arc::clone(&store), "a/b", runtime.handle());
        let other = Bucket::new(store, "", runtime.handle());
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
        bucket.adopt(&draft, "base/x").unwrap();
        bucket.fetch("base/x", &fetched).unwrap();
        assert!(std::fs::read(&fetched).unwrap() == large);
        bucket.remove("base/x").unwrap();
        assert_eq!((bucket.get("base/x").unwrap(), bucket.list("base").unwrap()), (None, Vec::new()));
    }

    #[test]
    fn an_object_is_made_by_the_next_try_if_an_answer_was_lost() {
        let (runtime, directory) = (tokio::runtime::Runtime::new().unwrap(), tempfile::tempdir().unwrap());
        let local = ArchivePlace::take(directory.path().to_str().unwrap(), runtime.handle()).unwrap();
        let bucket = Bucket::new(Arc::new(InMemory::new()), "", runtime.handle());
        for place in [local, ArchivePlace::Bucket(bucket)] {
            for (bytes, is_made) in [(b"one", true), (b"one", true), (b"two", false)] {
                assert_eq!(place.put("log/1", bytes).unwrap(), is_made, "{place:?}");
            }
            assert_eq!(place.get("log/1").unwrap().as_deref(), Some(&b"one"[..]));
            // A person may have removed it.
            place.remove("log/1").unwrap();
            place.remove("log/1").unwrap();
        }
    }

    /// A bucket that answers as `router` does.
    fn stub(runtime: &tokio::runtime::Runtime, router: Router) -> Bucket {
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        runtime.spawn(async { axum::serve(listener, router).await });
        let store = AmazonS3Builder::new().with_bucket_name("b").with_region("r").with_endpoint(endpoint);
        let store = store.with_access_key_id("a").with_secret_access_key("s").with_allow_http(true);
        Bucket::new(Arc::new(store.build().unwrap()), "", runtime.handle())
    }

    /// Answers the completion of an upload by 500, and knows no upload after that.
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
        let (runtime, directory) = (tokio::runtime::Runtime::new().unwrap(), tempfile::tempdir().unwrap());
        let draft = directory.path().join("draft");
        std::fs::write(&draft, "whole").unwrap();
        for is_kept in [true, false] {
            let upload = Arc::default();
            let router = Router::new().fallback(move |request| lose(Arc::clone(&upload), is_kept, request));
            let made = stub(&runtime, router).adopt(&draft, "base/x");
            assert_eq!(made.is_ok(), is_kept, "{made:?}");
        }
    }

    #[test]
    fn an_upload_that_fails_leaves_no_parts() {
        let (runtime, directory) = (tokio::runtime::Runtime::new().unwrap(), tempfile::tempdir().unwrap());
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
        bucket.adopt(&draft, "base/x").unwrap_err();
        assert_eq!(*methods.lock().unwrap(), ["POST", "PUT", "HEAD", "DELETE"]);
    }

    #[test]
    fn a_request_has_the_time_that_its_bytes_take() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_time().start_paused(true).build().unwrap().block_on(async {
            for (bytes, seconds) in [(0, 30), (1 << 20, 46), (1 << 30, 16_414)] {
                let began = tokio::time::Instant::now();
                within::<()>(bytes, std::future::pending()).await.unwrap_err();
                assert_eq!(began.elapsed().as_secs(), seconds, "{bytes}");
            }
        });
    }

    #[test]
    fn an_address_names_a_bucket() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        for address in ["s3://", "s3:///prefix"] {
            let error = Bucket::open(address, runtime.handle()).unwrap_err();
            assert!(error.to_string().contains("is not s3://BUCKET"), "{error}");
        }
    }
}
