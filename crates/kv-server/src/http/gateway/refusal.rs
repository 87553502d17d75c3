//! Errors as JSON, with etcd's HTTP codes.

use axum::response::Response;
use http::header::WWW_AUTHENTICATE;
use http::{HeaderValue, StatusCode};
use tonic::{Code, Status};

use super::write::json;

/// Returns the error of a call without a response so far.
pub(super) fn refused(code: Code, text: &str) -> Response {
    with_body(code, text, object(code, text))
}

/// Returns the error for a status from the services.
pub(super) fn status(status: &Status) -> Response {
    refused(status.code(), status.message())
}

/// Returns the error of a stream before its first response.
pub(super) fn stream_status(status: &Status) -> Response {
    with_body(status.code(), status.message(), last_line(status))
}

pub(super) fn last_line(status: &Status) -> String {
    format!("{{\"error\":{}}}\n", object(status.code(), status.message()))
}

fn object(code: Code, text: &str) -> String {
    match i32::from(code) {
        0 => "{}".to_owned(),
        code => serde_json::json!({ "code": code, "message": text }).to_string(),
    }
}

fn with_body(code: Code, text: &str, body: String) -> Response {
    let mut response = json(http_code(code), body.into());
    if code == Code::Unauthenticated
        && let Ok(text) = HeaderValue::from_str(text)
    {
        response.headers_mut().insert(WWW_AUTHENTICATE, text);
    }
    response
}

/// Returns the HTTP code of grpc-gateway; 499 has no name.
fn http_code(code: Code) -> StatusCode {
    match code {
        Code::Ok => StatusCode::OK,
        Code::Cancelled => StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST),
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => StatusCode::BAD_REQUEST,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::Unknown | Code::Internal | Code::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_etcds_gateway() {
        let codes: Vec<u16> = (0..17).map(|code| http_code(Code::from(code)).as_u16()).collect();
        assert_eq!(
            codes,
            [200, 499, 500, 400, 504, 404, 409, 403, 429, 400, 409, 400, 501, 500, 503, 500, 401]
        );
    }
}
