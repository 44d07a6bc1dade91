//! The forms of a policy, as the OpenAPI document has them.

use utoipa::openapi::schema::{
    AdditionalProperties, ArrayBuilder, ObjectBuilder, OneOfBuilder, Schema, Type,
};
use utoipa::openapi::{RefOr, schema::SchemaType};
use utoipa::{PartialSchema, ToSchema};

use super::{KBIT, MAX_DESTINATIONS, MAX_PORT_RANGES, NetworkPolicy};

impl ToSchema for NetworkPolicy {}

impl PartialSchema for NetworkPolicy {
    fn schema() -> RefOr<Schema> {
        let whole = of(Type::Object)
            .description(Some("The same with bandwidths"))
            .property("egress", egress())
            .property("upload_kbit", rate("Most that the sandbox sends, kbit/s"))
            .property("download_kbit", rate("Most that the sandbox is sent, kbit/s"))
            .additional_properties(Some(AdditionalProperties::FreeForm(false)));
        let egress = egress().item(whole);
        let policy = egress.description(Some("What may leave a sandbox, and how fast: docs/network.md"));
        RefOr::T(Schema::OneOf(policy.build()))
    }
}

fn of(kind: Type) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(SchemaType::new(kind))
}

fn egress() -> OneOfBuilder {
    let word = of(Type::String)
        .description(Some("Every public address, nowhere, or no network at all"))
        .enum_values(Some(["allow", "deny", "none"]));
    let listed = OneOfBuilder::new()
        .item(of(Type::String).description(Some("A network, an address or a name, with or without `:PORT`")))
        .item(destination());
    OneOfBuilder::new().item(word).item(ArrayBuilder::new().items(listed).max_items(Some(MAX_DESTINATIONS)))
}

fn destination() -> ObjectBuilder {
    let port = OneOfBuilder::new()
        .item(of(Type::Integer).minimum(Some(1)).maximum(Some(65_535)))
        .item(of(Type::String).description(Some("`FIRST-LAST`")));
    of(Type::Object)
        .property("to", of(Type::String))
        .property("ports", ArrayBuilder::new().items(port).max_items(Some(MAX_PORT_RANGES)))
        .property("protocol", of(Type::String).enum_values(Some(["tcp", "udp"])))
        .required("to")
        .additional_properties(Some(AdditionalProperties::FreeForm(false)))
}

fn rate(what: &str) -> ObjectBuilder {
    let (least, most) = (u32::try_from(KBIT.0), u32::try_from(KBIT.1));
    ObjectBuilder::new()
        .schema_type(SchemaType::from_iter([Type::Integer, Type::Null]))
        .description(Some(what))
        .minimum(least.ok())
        .maximum(most.ok())
}
