"""UpdateFeatures, and the bootstrap records of a new cluster. PURE."""

from __future__ import annotations

from typing import Any

from ballast_broker.controller.commands.configs import MIN_ISR
from ballast_broker.controller.commands.context import CommandContext, Outcome
from ballast_broker.metadata.features import BOOTSTRAP_LEVELS, ELIGIBLE_LEADER_REPLICAS, KRAFT_VERSION, SUPPORTED
from ballast_broker.metadata.image import RESOURCE_BROKER
from ballast_broker.metadata.records import record
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


def bootstrap_records(min_insync_replicas: int) -> list[Any]:
    """The initial feature levels, and the cluster-wide min.insync.replicas that ELR requires."""
    records = [record("FeatureLevelRecord", name=name, feature_level=level) for name, level in BOOTSTRAP_LEVELS.items()]
    records.append(
        record(
            "ConfigRecord",
            resource_type=RESOURCE_BROKER,
            resource_name="",
            name=MIN_ISR,
            value=str(min_insync_replicas),
        )
    )
    return records


def update_features(context: CommandContext, request: Any) -> Outcome:
    """All or nothing; version 2 reports one result for all features, older versions one per feature."""
    response = message("UpdateFeaturesResponse")(results=[], error_code=0, error_message=None, throttle_time_ms=0)
    records: list[Any] = []
    refusal: ApiError | None = None
    for update in request.feature_updates:
        try:
            records.extend(_update(context, update))
        except ApiError as error:
            refusal = error
            break
    if refusal is None:
        if request.version is None or request.version < 2:
            response.results = [
                type(response).UpdatableFeatureResult(feature=each.feature, error_code=0, error_message="NONE")
                for each in request.feature_updates
            ]
        return Outcome([] if request.validate_only else records, response)
    response.error_code = int(refusal.code)
    response.error_message = (
        f"The update failed for all features since the following feature had an error: {refusal.message}"
    )
    return Outcome([], response)


def raises_a_level(context: CommandContext, request: Any) -> bool:
    """Whether the request raises a level kept in the metadata; for kraft.version the quorum asks the voters itself."""
    levels = context.image.features
    known = [each for each in request.feature_updates if each.feature in SUPPORTED and each.feature != KRAFT_VERSION]
    return any(levels.level(each.feature) < each.max_version_level <= SUPPORTED[each.feature][1] for each in known)


def _update(context: CommandContext, update: Any) -> list[Any]:
    name, level = update.feature, update.max_version_level
    before = context.kraft_version if name == KRAFT_VERSION else context.image.features.level(name)
    if update.upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        raise _invalid(name, level, "The controller does not support the given upgrade type.")
    _check_level(context.config.node_id, name, level)
    if level < before:
        if update.upgrade_type == UPGRADE:
            raise _invalid(
                name,
                level,
                "Can't downgrade the version of this feature without setting the upgrade type to either safe or "
                "unsafe downgrade.",
            )
    elif level > before and update.upgrade_type != UPGRADE:
        raise _invalid(name, level, "Can't downgrade to a newer version.")
    _check_nodes(context, name, level)
    if level == before:
        return []
    if name == KRAFT_VERSION:
        if level < before:
            raise _invalid(name, level, "Can't downgrade the version of this feature.")
        return []  # the quorum writes that record itself
    records = [record("FeatureLevelRecord", name=name, feature_level=level)]
    if name == ELIGIBLE_LEADER_REPLICAS and level > 0:
        records += _min_isr_records(context)
    return records


def _invalid(name: str, level: int, why: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_UPDATE_VERSION, f"Invalid update version {level} for feature {name}. {why}")


def _check_level(node_id: int, name: str, level: int) -> None:
    if level < 0:
        raise _invalid(name, level, "A feature version cannot be less than 0.")
    low, high = SUPPORTED.get(name, (0, -1))
    if high < 0:
        raise _invalid(name, level, f"Local controller {node_id} does not support this feature.")
    if not low <= level <= high:  # 0 means disabled; metadata.version cannot be 0
        raise _invalid(name, level, f"Local controller {node_id} only supports versions {low}-{high}")


def _check_nodes(context: CommandContext, name: str, level: int) -> None:
    nodes = [(f"Broker {broker.id}", broker.features) for broker in context.image.cluster.brokers.values()]
    nodes += [(f"Controller {voter}", features) for voter, features in context.voters_features.items()]
    for who, features in nodes:
        low, high = features.get(name, (0, 0))
        if level and high == 0:
            raise _invalid(name, level, f"{who} does not support this feature.")
        if level and not low <= level <= high:
            raise _invalid(name, level, f"{who} only supports versions {low}-{high}")


def _min_isr_records(context: CommandContext) -> list[Any]:
    """Set min.insync.replicas cluster-wide and remove the overrides of single brokers."""
    configs = context.image.configs
    records = []
    if MIN_ISR not in configs.of(RESOURCE_BROKER, ""):
        value = str(context.config.min_insync_replicas)
        records.append(
            record("ConfigRecord", resource_type=RESOURCE_BROKER, resource_name="", name=MIN_ISR, value=value)
        )
    for resource_type, name in configs.by_resource:
        if resource_type == RESOURCE_BROKER and name and MIN_ISR in configs.of(resource_type, name):
            records.append(
                record("ConfigRecord", resource_type=RESOURCE_BROKER, resource_name=name, name=MIN_ISR, value=None)
            )
    return records
