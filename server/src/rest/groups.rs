use crate::http::App;
use crate::service::ServiceError;
use axum::Json;
use axum::extract::{RawQuery, State};
use dressage_store::{GroupFilter, GroupRow};
use dressage_wire::ids::GroupId;
use serde::Serialize;

/// Groups on a page, where nobody says.
const LIMIT: u32 = 50;

/// The keys of the query.
const KEYS: &[&str] = &["task_id", "search", "rollouts_min", "limit", "cursor"];

/// A page of groups.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Groups {
    /// The groups, the latest first.
    pub groups: Vec<GroupRow>,
    /// `cursor` of the next page; null on the last.
    pub next_cursor: Option<GroupId>,
}

/// Rollouts that were asked for together, summed up: how many there are, and what their rewards are like.
#[utoipa::path(
    get, path = "/api/v1/groups", tag = "rollouts", operation_id = "list_groups",
    params(
        ("task_id" = Option<String>, Query, description = "the caller's name of the task"),
        ("search" = Option<String>, Query, description = "text in the title or the task's name"),
        ("rollouts_min" = Option<u32>, Query, description = "at least so many rollouts; one that was asked for alone is a group of its own"),
        ("limit" = Option<u32>, Query, description = "1 to 1000; default 50"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
    ),
    responses(
        (status = 200, description = "A page.", body = Groups),
        (status = 422, description = "A key or value is wrong.", body = crate::http::ErrorBody),
    )
)]
pub async fn list(State(app): State<App>, RawQuery(query): RawQuery) -> Result<Json<Groups>, ServiceError> {
    let (mut filter, limit) = read(query.as_deref().unwrap_or(""))?;
    // One more tells whether there is a next page.
    filter.limit = Some(limit + 1);
    let mut groups = app.service.store().groups(&filter).await?;
    let more = groups.len() > limit as usize;
    groups.truncate(limit as usize);
    let next_cursor = groups.last().filter(|_| more).map(|group| group.id);
    Ok(Json(Groups { groups, next_cursor }))
}

fn read(query: &str) -> Result<(GroupFilter, u32), ServiceError> {
    let (mut filter, mut limit) = (GroupFilter::default(), LIMIT);
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        let wrong = |message: &str| ServiceError::invalid(&*key, message);
        match &*key {
            _ if value.is_empty() => {}
            "task_id" => filter.task_id = Some(value.into_owned()),
            "search" => filter.search = Some(value.into_owned()),
            "rollouts_min" => {
                filter.rollouts_at_least = value.parse().map_err(|_| wrong("is not a count"))?;
            }
            "limit" => {
                let given = value.parse().ok().filter(|limit| (1..=1000).contains(limit));
                limit = given.ok_or_else(|| wrong("is not between 1 and 1000"))?;
            }
            "cursor" => filter.after = Some(value.parse().map_err(|_| wrong("is no id of a group"))?),
            _ => {
                let known = format!("known are {}", KEYS.join(", "));
                return Err(wrong("unknown key").hint(Some(known)));
            }
        }
    }
    Ok((filter, limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read_and_what_is_wrong_in_it_is_named() {
        let (filter, limit) = read("task_id=a%20b&search=&limit=7").unwrap();
        assert_eq!(
            (filter.task_id.as_deref(), filter.search, limit),
            (Some("a b"), None, 7)
        );
        for (query, key) in [("limit=0", "limit"), ("cursor=x", "cursor"), ("state=a", "state")] {
            assert_eq!(read(query).unwrap_err().details[0].path, key, "{query}");
        }
    }
}
