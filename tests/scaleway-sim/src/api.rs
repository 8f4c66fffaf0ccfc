//! The API: from a request to an answer.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::server::Server;
use crate::world::World;

macro_rules! calls {
    ($($variant:ident $word:literal $what:literal)+) => {
        /// A call that is simulated.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Call {
            $(#[doc = $what] $variant,)+
        }

        impl Call {
            /// All calls.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// Its word in rules.
            pub fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }
    };
}

calls! {
    ListServers "list-servers" "`GET /apple-silicon/v1alpha1/zones/{zone}/servers`"
    GetServer "get-server" "`GET …/servers/{id}`"
    UpdateServer "update-server" "`PATCH …/servers/{id}`"
    ReinstallServer "reinstall-server" "`POST …/servers/{id}/reinstall`"
    RebootServer "reboot-server" "`POST …/servers/{id}/reboot`"
    DeleteServer "delete-server" "`DELETE …/servers/{id}`"
    ListOs "list-os" "`GET …/os`"
    ListSshKeys "list-ssh-keys" "`GET /iam/v1alpha1/ssh-keys`"
    CreateSshKey "create-ssh-key" "`POST /iam/v1alpha1/ssh-keys`"
    DeleteSshKey "delete-ssh-key" "`DELETE /iam/v1alpha1/ssh-keys/{id}`"
}

impl Call {
    pub(crate) fn from_word(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|call| call.word() == word)
    }
}

/// A request, taken apart.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: Vec<(String, String)>,
    pub(crate) token: Option<String>,
    pub(crate) body: Value,
}

/// Which call a request is, and what its path names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) call: Call,
    pub(crate) zone: String,
    pub(crate) id: String,
}

impl Request {
    pub(crate) fn route(&self) -> Option<Route> {
        let parts: Vec<&str> = self.path.split('/').skip(1).collect();
        let (zone, call, id) = match (self.method.as_str(), parts.as_slice()) {
            ("GET", ["apple-silicon", "v1alpha1", "zones", zone, "servers"]) => {
                (*zone, Call::ListServers, "")
            }
            ("GET", ["apple-silicon", "v1alpha1", "zones", zone, "os"]) => (*zone, Call::ListOs, ""),
            (method, ["apple-silicon", "v1alpha1", "zones", zone, "servers", id]) => {
                let call = match method {
                    "GET" => Call::GetServer,
                    "PATCH" => Call::UpdateServer,
                    "DELETE" => Call::DeleteServer,
                    _ => return None,
                };
                (*zone, call, *id)
            }
            ("POST", ["apple-silicon", "v1alpha1", "zones", zone, "servers", id, "reinstall"]) => {
                (*zone, Call::ReinstallServer, *id)
            }
            ("POST", ["apple-silicon", "v1alpha1", "zones", zone, "servers", id, "reboot"]) => {
                (*zone, Call::RebootServer, *id)
            }
            ("GET", ["iam", "v1alpha1", "ssh-keys"]) => ("", Call::ListSshKeys, ""),
            ("POST", ["iam", "v1alpha1", "ssh-keys"]) => ("", Call::CreateSshKey, ""),
            ("DELETE", ["iam", "v1alpha1", "ssh-keys", id]) => ("", Call::DeleteSshKey, *id),
            _ => return None,
        };
        Some(Route { call, zone: zone.to_owned(), id: id.to_owned() })
    }

    fn parameter(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Refuses parameters that the call does not have.
    fn only(&self, names: &[&str]) -> Result<(), ApiError> {
        match self.query.iter().find(|(key, _)| !names.contains(&key.as_str())) {
            Some((key, _)) => Err(ApiError::invalid_argument(key, "unknown parameter")),
            None => Ok(()),
        }
    }

    /// The fields of the body. Refuses those that the call does not have.
    fn fields(&self, names: &[&str]) -> Result<&serde_json::Map<String, Value>, ApiError> {
        let fields =
            self.body.as_object().ok_or_else(|| ApiError::invalid_argument("body", "not an object"))?;
        match fields.keys().find(|key| !names.contains(&key.as_str())) {
            Some(key) => Err(ApiError::invalid_argument(key, "unknown field")),
            None => Ok(fields),
        }
    }

    /// The part of a list that the request asks for.
    fn page(&self, name: &str, items: &[Value]) -> Result<Value, ApiError> {
        let number = |name: &str, default: usize| match self.parameter(name) {
            None => Ok(default),
            Some(text) => text.parse().map_err(|_| ApiError::invalid_argument(name, "not a number")),
        };
        let (page, size) = (number("page", 1)?, number("page_size", 50)?);
        if page == 0 || size == 0 || size > 100 {
            return Err(ApiError::invalid_argument(
                "page_size",
                "pages begin with 1 and have 1 to 100 items",
            ));
        }
        let part: Vec<&Value> = items.iter().skip((page - 1) * size).take(size).collect();
        Ok(json!({name: part, "total_count": items.len()}))
    }
}

impl World {
    /// Carries a request out.
    pub(crate) fn answer(&mut self, request: &Request) -> Result<(StatusCode, Value), ApiError> {
        let route = request.route().ok_or_else(|| ApiError::no_route(&request.path))?;
        if request.token.as_deref() != Some(self.settings.secret_key.as_str()) {
            return Err(ApiError::denied_authentication());
        }
        if !route.zone.is_empty() && !self.settings.zones.contains(&route.zone) {
            return Err(ApiError::invalid_argument("zone", "unknown zone"));
        }
        self.settle();
        let id = route.id.as_str();
        let ok = |value| Ok((StatusCode::OK, value));
        match route.call {
            Call::ListServers => ok(self.list_servers(request, &route.zone)?),
            Call::ListOs => {
                request.only(&["page", "page_size", "server_type", "name"])?;
                let (server_type, name) = (request.parameter("server_type"), request.parameter("name"));
                let images = self.images.iter().filter(|image| {
                    server_type.is_none_or(|wanted| image.server_types.iter().any(|own| own == wanted))
                        && name.is_none_or(|prefix| image.name.starts_with(prefix))
                });
                ok(request.page("os", &images.map(crate::server::Image::json).collect::<Vec<_>>())?)
            }
            Call::GetServer => ok(self.in_zone(&route.zone, id)?.json()),
            Call::UpdateServer => {
                let fields = request.fields(&["name", "schedule_deletion", "enable_vpc"])?;
                ok(self.update(&route.zone, id, fields)?.json())
            }
            Call::ReinstallServer => {
                let image = match request.fields(&["os_id"])?.get("os_id").and_then(Value::as_str) {
                    None => None,
                    Some(id) => {
                        let image = self.images.iter().find(|image| image.id == id);
                        Some(image.cloned().ok_or_else(|| ApiError::not_found("os", id))?)
                    }
                };
                ok(self.reinstall(&route.zone, id, image)?.json())
            }
            Call::RebootServer => {
                request.fields(&[])?;
                ok(self.reboot(&route.zone, id)?.json())
            }
            Call::DeleteServer => {
                self.delete(&route.zone, id)?;
                Ok((StatusCode::NO_CONTENT, Value::Null))
            }
            Call::ListSshKeys => {
                request.only(&["page", "page_size", "name", "project_id", "order_by"])?;
                let (name, project) = (request.parameter("name"), request.parameter("project_id"));
                // The filter finds every name that contains it.
                let keys = self.ssh_keys.iter().filter(|key| {
                    name.is_none_or(|name| key.name.contains(name))
                        && project.is_none_or(|id| key.project_id == id)
                });
                ok(request.page("ssh_keys", &keys.map(|key| json!(key)).collect::<Vec<_>>())?)
            }
            Call::CreateSshKey => {
                let fields = request.fields(&["name", "public_key", "project_id"])?;
                let text = |name: &str| {
                    let text = fields.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
                    text.map(str::to_owned).ok_or_else(|| ApiError::invalid_argument(name, "required"))
                };
                ok(json!(self.add_ssh_key(text("name")?, text("public_key")?, text("project_id")?)))
            }
            Call::DeleteSshKey => {
                self.remove_ssh_key(id)?;
                Ok((StatusCode::NO_CONTENT, Value::Null))
            }
        }
    }

    fn list_servers(&self, request: &Request, zone: &str) -> Result<Value, ApiError> {
        request.only(&["page", "page_size", "order_by", "project_id", "organization_id"])?;
        let project = request.parameter("project_id");
        let mut servers: Vec<&Server> = self
            .servers
            .iter()
            .filter(|server| server.zone == zone && project.is_none_or(|id| server.project_id == id))
            .collect();
        servers.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        match request.parameter("order_by") {
            None | Some("created_at_asc") => {}
            Some("created_at_desc") => servers.reverse(),
            Some(_) => return Err(ApiError::invalid_argument("order_by", "unknown order")),
        }
        request.page("servers", &servers.into_iter().map(Server::json).collect::<Vec<_>>())
    }
}
