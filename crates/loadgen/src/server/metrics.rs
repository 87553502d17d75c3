//! What a server counts of itself: `process_*` at `/metrics` on its client port, by a plain HTTP/1.1 GET.

use super::{Counters, Error};
use crate::dial::{Speech, connect};
use crate::endpoint::Endpoint;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A metrics page is some hundred kilobytes; beyond this it is something else.
const PAGE_BYTES_MAX: u64 = 16 << 20;
const TIMEOUT: Duration = Duration::from_secs(5);

/// Reads the counters of the server at `endpoint`.
pub(super) async fn counters(endpoint: &Endpoint) -> Result<Counters, Error> {
    let fail = |reason: String| Error::Metrics { endpoint: endpoint.clone(), reason };
    let page = match tokio::time::timeout(TIMEOUT, page(endpoint)).await {
        Err(_) => return Err(fail(format!("no answer within {TIMEOUT:?}"))),
        Ok(Err(error)) => return Err(fail(error.to_string())),
        Ok(Ok(page)) => page,
    };
    if !page.starts_with("HTTP/1.1 200") && !page.starts_with("HTTP/1.0 200") {
        return Err(fail(page.lines().next().unwrap_or("empty answer").to_owned()));
    }
    parse(&page).ok_or_else(|| fail("no process_cpu_seconds_total there".into()))
}

async fn page(endpoint: &Endpoint) -> std::io::Result<String> {
    let mut stream = connect(endpoint, Speech::Http1).await?;
    // HTTP/1.0, so that the body is not chunked and ends with the connection.
    let request = format!("GET /metrics HTTP/1.0\r\nHost: {endpoint}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut page = Vec::new();
    stream.take(PAGE_BYTES_MAX).read_to_end(&mut page).await?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}

fn parse(page: &str) -> Option<Counters> {
    Some(Counters {
        cpu_seconds: value(page, "process_cpu_seconds_total")?,
        resident_bytes: value(page, "process_resident_memory_bytes").unwrap_or(0.0) as u64,
        resident_peak_bytes: None,
        bytes_written: None,
    })
}

/// The value of a sample without labels.
fn value(page: &str, name: &str) -> Option<f64> {
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_counters_are_found_among_the_others() {
        let page = "HTTP/1.0 200 OK\r\n\r\n# TYPE process_cpu_seconds_total counter\n\
                    process_cpu_seconds_total_other 9\nprocess_cpu_seconds_total 12.75\n\
                    process_resident_memory_bytes 4.2090496e+07\n";
        let counters = parse(page).unwrap();
        assert_eq!((counters.cpu_seconds, counters.resident_bytes), (12.75, 42_090_496));
        assert_eq!(parse("go_goroutines 5\n"), None);
    }

    #[tokio::test]
    async fn what_serves_no_metrics_is_named() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint: Endpoint = listener.local_addr().unwrap().to_string().parse().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            // Closing with unread bytes would reset the connection under the answer.
            let mut request = [0; 1024];
            assert!(stream.read(&mut request).await.unwrap() > 0);
            stream.write_all(b"HTTP/1.0 404 Not Found\r\n\r\n").await.unwrap();
        });
        let error = counters(&endpoint).await.unwrap_err();
        assert_eq!(error.to_string(), format!("read http://{endpoint}/metrics: HTTP/1.0 404 Not Found"));
    }
}
