//! Calls with one request and one response.

use api::grpc::{self, PREFIX_BYTES};
use api::{Error, JsonError, JsonForm, Method};
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use state_machine::command;
use tonic::{Code, Status};

use super::answers::{AnswerMessage, CallAnswers, OneAnswer, refused_answer};
use super::head::metadata;
use super::values::Values;
use super::{GatewayCall, refusal, write};
use crate::methods;
use crate::rpc::Dispatcher;
use grpc_server::http2::{Answer, BegunCall, CallHandler};

/// Base64 takes four bytes for three; names and numbers take the rest.
const JSON_FACTOR: usize = 2;

impl GatewayCall {
    pub(super) async fn unary(self, request: Request) -> Response {
        match self.call(request).await {
            Ok(response) => response,
            Err(status) => refusal::status(&status),
        }
    }

    async fn call(self, request: Request) -> Result<Response, Status> {
        let mut answers = self.begin(request).await?;
        let AnswerMessage { bytes, held } = answers.next(&self.budget).await?;
        match answers.next(&self.budget).await {
            Err(status) if status.code() == Code::Ok => {}
            Err(status) => return Err(status),
            Ok(_) => return Err(Status::internal("a unary call had two responses")),
        }
        let json = self.json(bytes.clone()).await;
        let json = json.map_err(|status| refused_answer(self.method, bytes, status))?;
        Ok(write::whole(json, held))
    }

    /// Makes a call with one request and one response.
    async fn begin(&self, request: Request) -> Result<CallAnswers, Status> {
        let (parts, body) = request.into_parts();
        let metadata = metadata(&parts.headers).map_err(Status::invalid_argument)?;
        let message = self.one_message(body).await?;
        let (dispatcher, shared) = (self.dispatcher(), &self.connection.shared);
        let call = match dispatcher.begin(self.method.path(), &metadata, None)? {
            BegunCall::Unary(call) => call,
            BegunCall::Stream(_) => unreachable!("a method with one response is no stream"),
        };
        let message = message.slice(PREFIX_BYTES..);
        if message.len() > self.gateway.message_bytes_max {
            return Err(grpc_errors::too_large(message.len(), self.gateway.message_bytes_max));
        }
        let counted = shared.count_message(message.len(), Dispatcher::user(&call))?;
        let answer = Box::pin(dispatcher.unary(call, message, shared.room())).await?;
        let source = match answer {
            Answer::Whole(message) | Answer::WithMetadata(_, message) => {
                OneAnswer::Whole(message, self.method)
            }
            Answer::Long(call) => OneAnswer::Long(call, counted),
        };
        Ok(CallAnswers::new(source, shared))
    }

    /// Returns the message of the first object; an empty body means an empty object.
    pub(super) async fn one_message(&self, body: Body) -> Result<Bytes, Status> {
        let mut values = Values::due(body, self.json_bytes_max());
        let value = values.next(&self.budget).await?;
        self.message(value.unwrap_or_else(|| Bytes::from_static(b"{}"))).await
    }

    pub(super) fn values(&self, body: Body) -> Values {
        Values::new(body, self.json_bytes_max())
    }

    fn json_bytes_max(&self) -> usize {
        methods::message_bytes_max(self.method, self.gateway.message_bytes_max).saturating_mul(JSON_FACTOR)
    }

    pub(super) async fn json(&self, answer: Bytes) -> Result<Vec<u8>, Status> {
        let (form, bytes) = (self.form, answer.len());
        let convert = move || form.response(answer).map_err(|error| unreadable(&error));
        self.converted(bytes, convert).await
    }

    /// Converts a JSON object to a message with its prefix.
    pub(super) async fn message(&self, json: Bytes) -> Result<Bytes, Status> {
        let (form, json_bytes) = (self.form, json.len());
        let objects_max = match self.method {
            Method::KvTxn => command::txn_fields_max(self.gateway.txn_ops_max).saturating_add(1),
            _ => usize::MAX,
        };
        let convert = move || message(form, &json, objects_max);
        let message = self.converted(json_bytes, convert).await?;
        let prefix = grpc::prefix(message.len()).ok_or_else(|| Status::resource_exhausted("4 GiB"))?;
        let mut prefixed = BytesMut::with_capacity(PREFIX_BYTES + message.len());
        prefixed.extend_from_slice(&prefix);
        prefixed.extend_from_slice(&message);
        Ok(prefixed.freeze())
    }
}

/// Converts `json` to a message. More than `objects_max` objects are a transaction with too many
/// operations, which would take a hundred times their two bytes in memory. Base64 has no braces.
fn message(form: JsonForm, json: &[u8], objects_max: usize) -> Result<Vec<u8>, Status> {
    if json.len() / 2 > objects_max && json.iter().filter(|byte| **byte == b'{').count() > objects_max {
        return Err(grpc_errors::refused(Error::TooManyOps));
    }
    form.request(json).map_err(|error| malformed(&error, json))
}

fn malformed(error: &JsonError, json: &[u8]) -> Status {
    // Values other than objects, lists and strings are truncated after their first byte.
    let is_cut = matches!(json.trim_ascii_start().first(), Some(b'{' | b'[' | b'"'));
    Status::invalid_argument(match error {
        JsonError::Malformed(error) if error.is_eof() && is_cut => "unexpected EOF".to_owned(),
        JsonError::Malformed(error) => format!("proto: {error}"),
        JsonError::Decode(error) => error.to_string(),
    })
}

/// Returns the error for a response of an in-process service that does not match the descriptors.
fn unreadable(error: &JsonError) -> Status {
    Status::internal(format!("an answer without a JSON form: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_of_too_many_objects_is_refused_before_it_is_built() {
        let form = JsonForm::of_method(Method::KvTxn);
        for (ops, taken) in [(0, true), (7, true), (8, false), (1 << 20, false)] {
            let json = format!(r#"{{"success":[{}{{}}]}}"#, "{},".repeat(ops));
            let message = message(form, json.as_bytes(), 9);
            assert_eq!(message.is_ok(), taken, "{ops}");
            if let Err(status) = message {
                assert_eq!(status.message(), Error::TooManyOps.message());
            }
        }
    }
}
