//! Tokens: made, listed, revoked.

use axum::extract::State;
use forkd_protocol::names::{TenantName, TokenId};
use forkd_protocol::rest::{CreateToken, CreatedToken, ErrorBody, TokenInfo};
use forkd_store::TokenRow;
use http::{StatusCode, header};

use crate::access::mint;
use crate::audit::Made;
use crate::clock::unix_now;
use crate::error::ApiError;
use crate::extract::{Json, Name};
use crate::service::{Service, blocking};

/// Longest life, seconds: ten years.
const LONGEST: u64 = 315_360_000;
/// Most patterns of one token, and their longest.
const MOST_TAGS: usize = 32;
const LONGEST_TAG: usize = 64;
/// Longest note, characters.
const LONGEST_NOTE: usize = 200;

/// All tokens, without their secrets
#[utoipa::path(get, path = "/v1/tokens", operation_id = "list_tokens", tag = "access", responses((status = 200, body = [TokenInfo])))]
pub(crate) async fn list(State(service): State<Service>) -> axum::Json<Vec<TokenInfo>> {
    axum::Json(service.keyring().infos())
}

/// One token, without its secret
#[utoipa::path(
    get, path = "/v1/tokens/{id}", operation_id = "get_token", tag = "access", params(("id" = String, Path)),
    responses((status = 200, body = TokenInfo), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody))
)]
pub(crate) async fn get(
    State(service): State<Service>,
    Name(id): Name<TokenId>,
) -> Result<axum::Json<TokenInfo>, ApiError> {
    let missing = || ApiError::not_found(format!("there is no token {:?}", id.as_str()));
    service.keyring().info(&id).map(axum::Json).ok_or_else(missing)
}

/// Make a token
///
/// Its secret is in this answer and nowhere else. From the first token on, loopback demands one, too.
#[utoipa::path(
    post, path = "/v1/tokens", operation_id = "create_token", tag = "access", request_body = CreateToken,
    responses((status = 201, body = CreatedToken), (status = 400, body = ErrorBody), (status = 507, body = ErrorBody))
)]
pub(crate) async fn create(
    State(service): State<Service>,
    Json(asked): Json<CreateToken>,
) -> Result<impl axum::response::IntoResponse, ApiError> {
    check(&asked)?;
    let (id, token, hash) = mint()?;
    let now = unix_now();
    let row = TokenRow {
        id: id.clone(),
        hash,
        scope: asked.scope,
        tags: asked.tags,
        tenant: asked.tenant,
        note: asked.note,
        created_at_unix: now,
        expires_at_unix: asked.expires_in_secs.map(|seconds| now.saturating_add(seconds)),
        revoked_at_unix: None,
    };
    let (store, kept) = (service.engine().store().clone(), row.clone());
    blocking(move || store.put_token(&kept)).await??;
    service.keyring().put(row);
    let info = service.keyring().info(&id);
    let info = info.ok_or_else(|| ApiError::not_found("the token is gone already"))?;
    let made = axum::Extension(Made(vec![id.to_string()]));
    let private = [(header::CACHE_CONTROL, "no-store")];
    Ok((StatusCode::CREATED, made, private, axum::Json(CreatedToken { token, info })))
}

/// Revoke a token: from now on it is good for nothing
#[utoipa::path(
    delete, path = "/v1/tokens/{id}", operation_id = "revoke_token", tag = "access", params(("id" = String, Path)),
    responses((status = 204), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody))
)]
pub(crate) async fn revoke(
    State(service): State<Service>,
    Name(id): Name<TokenId>,
) -> Result<StatusCode, ApiError> {
    let now = unix_now();
    let (store, asked) = (service.engine().store().clone(), id.clone());
    blocking(move || store.revoke_token(&asked, now)).await??;
    service.keyring().revoke(&id, now);
    Ok(StatusCode::NO_CONTENT)
}

fn check(asked: &CreateToken) -> Result<(), ApiError> {
    let refused = |text: String| Err(ApiError::bad_request(text));
    if asked.tags.len() > MOST_TAGS {
        return refused(format!("a token has at most {MOST_TAGS} patterns of tags"));
    }
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"_-*?".contains(&b);
    if let Some(bad) =
        asked.tags.iter().find(|t| !(1..=LONGEST_TAG).contains(&t.len()) || !t.bytes().all(plain))
    {
        return refused(format!(
            "{bad:?} is no pattern of tags: use 1 to {LONGEST_TAG} of A-Z a-z 0-9 _ - * ?"
        ));
    }
    if asked.note.as_ref().is_some_and(|note| note.chars().count() > LONGEST_NOTE) {
        return refused(format!("a note has at most {LONGEST_NOTE} characters"));
    }
    if asked.expires_in_secs.is_some_and(|s| !(1..=LONGEST).contains(&s)) {
        return refused(format!("a token lives 1 to {LONGEST} seconds"));
    }
    asked.tenant.as_ref().map(|tenant| tenant.parse::<TenantName>()).transpose()?;
    Ok(())
}
