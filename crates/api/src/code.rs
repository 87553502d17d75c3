//! The codes of gRPC by their names.

/// In the order of their numbers, as Go spells them: in metrics, reports and error texts of etcd.
pub const CODE_NAMES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    #[test]
    fn names_stand_at_the_number_of_their_code() {
        for (number, name) in CODE_NAMES.iter().enumerate() {
            let code = Code::from_i32(number as i32);
            let expected = if code == Code::Ok { "OK".to_owned() } else { format!("{code:?}") };
            // The one that tonic spells otherwise.
            assert_eq!(name.replace("Canceled", "Cancelled"), expected, "code {number}");
        }
    }
}
