//! Scaleway's errors, in their shapes.

use http::StatusCode;
use serde_json::{Value, json};

/// An answer that is no success.
#[derive(Debug, Clone)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) body: Value,
}

impl ApiError {
    fn new(status: StatusCode, body: Value) -> Self {
        Self { status, body }
    }

    pub(crate) fn denied_authentication() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            json!({"message": "authentication is denied", "method": "api_key", "reason": "invalid_argument", "type": "denied_authentication"}),
        )
    }

    pub(crate) fn not_found(resource: &str, id: &str) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            json!({"message": "resource is not found", "resource": resource, "resource_id": id, "type": "not_found"}),
        )
    }

    pub(crate) fn no_route(path: &str) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            json!({"message": format!("scaleway-sim: {path} is not simulated"), "type": "unknown_resource"}),
        )
    }

    pub(crate) fn invalid_argument(argument: &str, help: &str) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            json!({
                "message": "invalid argument(s)", "type": "invalid_arguments",
                "details": [{"argument_name": argument, "reason": "constraint", "help_message": help}],
            }),
        )
    }

    pub(crate) fn transient_state(id: &str, state: &str) -> Self {
        Self::new(
            StatusCode::CONFLICT,
            json!({
                "message": "resource is in a transient state", "type": "transient_state",
                "resource": "server", "resource_id": id, "current_state": state,
            }),
        )
    }

    pub(crate) fn precondition_failed(precondition: &str, help: &str) -> Self {
        Self::new(
            StatusCode::PRECONDITION_FAILED,
            json!({
                "message": "precondition is not respected", "type": "precondition_failed",
                "precondition": precondition, "help_message": help,
            }),
        )
    }

    /// An error by its code alone, in the shape that fits it.
    pub(crate) fn of_status(status: StatusCode, id: &str) -> Self {
        match status {
            StatusCode::UNAUTHORIZED => Self::denied_authentication(),
            StatusCode::NOT_FOUND => Self::not_found("server", id),
            StatusCode::CONFLICT => Self::transient_state(id, "busy"),
            StatusCode::PRECONDITION_FAILED => {
                Self::precondition_failed("unknown_precondition", "not at the moment")
            }
            StatusCode::FORBIDDEN => Self::new(
                status,
                json!({
                    "message": "insufficient permissions", "type": "permissions_denied",
                    "details": [{"resource": "apple_silicon", "action": "write"}],
                }),
            ),
            StatusCode::LOCKED => Self::new(
                status,
                json!({"message": "resource is locked", "type": "locked", "resource": "server", "resource_id": id}),
            ),
            _ => Self::new(status, json!({"message": "internal error", "type": "internal_error"})),
        }
    }
}
