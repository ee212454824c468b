"""The style of all dashboards, in one place: how panels look, which variables there are, how dashboards are laid out.

Panels and queries are builders of grafana-foundation-sdk, so a dashboard can add what this module does not offer.
Widths are in the 24 columns of Grafana's grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import TypeAlias

from grafana_foundation_sdk.builders import bargauge, stat, timeseries
from grafana_foundation_sdk.builders.common import (
    GraphThresholdsStyleConfig,
    ReduceDataOptions,
    StackingConfig,
    VizLegendOptions,
    VizTooltipOptions,
)
from grafana_foundation_sdk.builders.dashboard import (
    AnnotationQuery,
    Dashboard,
    DashboardLink,
    DatasourceVariable,
    FieldColor,
    QueryVariable,
    Row,
    ThresholdsConfig,
)
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.models import common, units
from grafana_foundation_sdk.models import dashboard as model

Panel: TypeAlias = timeseries.Panel | stat.Panel | bargauge.Panel
Step: TypeAlias = tuple[float | None, str]

SOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
TAG = "ballast"
GREEN, ORANGE, RED = "green", "orange", "red"
FULL, HALF, THIRD, QUARTER, SIXTH, EIGHTH = 24, 12, 8, 6, 4, 3
NUMBER_HEIGHT, GRAPH_HEIGHT = 4, 8


def steps(warning: float | None = None, critical: float | None = None) -> tuple[Step, ...]:
    """Green from the bottom, orange and red from these values up."""
    marks = ((warning, ORANGE), (critical, RED))
    return ((None, GREEN), *((value, color) for value, color in marks if value is not None))


# From the first value on, a directory is worth a look; from the second on, BallastLogDirNearlyFull fires.
FILL_STEPS = steps(0.8, 0.9)
NONE_ALLOWED = steps(critical=1)
EXACTLY_ONE: tuple[Step, ...] = ((None, RED), (1.0, GREEN), (2.0, RED))


@dataclass(frozen=True)
class Variable:
    """A variable at the top of a dashboard; a plain one has one value, the others any number, by default all."""

    name: str
    label: str
    description: str
    query: str
    plain: bool = False


def dashboard(
    name: str,
    title: str,
    description: str,
    variables: Sequence[Variable],
    alerts: str,
    rows: Sequence[tuple[str, Sequence[Panel]]],
) -> Dashboard:
    """A dashboard of titled rows, with links to all others; alerts whose labels match are marked in its graphs."""
    built = Dashboard(f"Ballast / {title}").uid(f"ballast-{name}").description(description).tags([TAG]).editable()
    built.refresh("30s").time("now-6h", "now").timezone("browser").tooltip(model.DashboardCursorSync.CROSSHAIR)
    built.with_variable(DatasourceVariable("datasource").label("Data source").type("prometheus"))
    for variable in variables:
        built.with_variable(_choice(variable))
    built.link(_link_to_the_others()).annotation(_alerts(alerts))
    ids = count(1)
    for row_title, panels in rows:
        built.with_row(Row(row_title).id(next(ids)))
        for panel in panels:
            built.with_panel(panel.id(next(ids)))
    return built


def graph(
    title: str, unit: str, description: str, *,
    width: int = HALF, limits: Sequence[Step] = (), stacked: bool = False, below_zero: bool = False,
) -> timeseries.Panel:  # fmt: skip
    """Lines over time, their last and highest values in the legend; with `limits` as dashed lines."""
    panel = timeseries.Panel().title(title).unit(unit).description(description).datasource(SOURCE)
    panel.span(width).height(GRAPH_HEIGHT).line_width(1).fill_opacity(30 if stacked else 5)
    panel.show_points(common.VisibilityMode.NEVER)
    legend = VizLegendOptions().show_legend(True).display_mode(common.LegendDisplayMode.TABLE)
    legend.placement(common.LegendPlacement.BOTTOM).calcs(["lastNotNull", "max"]).sort_by("Last *").sort_desc(True)
    tooltip = VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING)
    panel.legend(legend).tooltip(tooltip)
    if not below_zero:
        panel.min(0)
    if stacked:
        panel.stacking(StackingConfig().mode(common.StackingMode.NORMAL))
    if limits:
        style = GraphThresholdsStyleConfig().mode(common.GraphThresholdsStyleMode.DASHED)
        panel.thresholds(_thresholds(limits)).thresholds_style(style)
    return panel


def number(
    title: str, unit: str, description: str, *, width: int = SIXTH, limits: Sequence[Step] = steps()
) -> stat.Panel:
    """One number in green, orange or red, with a sparkline behind it."""
    panel = stat.Panel().title(title).unit(unit).description(description).datasource(SOURCE)
    panel.span(width).height(NUMBER_HEIGHT).thresholds(_thresholds(limits)).color_scheme(_by_thresholds())
    panel.color_mode(common.BigValueColorMode.VALUE).graph_mode(common.BigValueGraphMode.AREA)
    return panel.reduce_options(ReduceDataOptions().calcs(["lastNotNull"]))


def bars(title: str, unit: str, description: str, *, height: int, limits: Sequence[Step]) -> bargauge.Panel:
    """A bar across the page for the current value of each series."""
    panel = bargauge.Panel().title(title).unit(unit).description(description).datasource(SOURCE)
    panel.span(FULL).height(height).min(0).thresholds(_thresholds(limits)).color_scheme(_by_thresholds())
    panel.orientation(common.VizOrientation.HORIZONTAL).display_mode(common.BarGaugeDisplayMode.BASIC)
    panel.min_viz_height(16).max_viz_height(24)
    if unit == units.PercentUnit:
        panel.max(1)
    return panel.reduce_options(ReduceDataOptions().calcs(["lastNotNull"]))


def over_time(query: str, legend: str, ref: str = "A") -> Dataquery:
    """A range query: for graphs, and for numbers with a sparkline."""
    return Dataquery().expr(query).legend_format(legend).ref_id(ref).range().datasource(SOURCE)


def now(query: str, legend: str) -> Dataquery:
    """An instant query: the current state."""
    return Dataquery().expr(query).legend_format(legend).ref_id("A").instant().datasource(SOURCE)


def link_to(name: str, title: str, **variables: str) -> DashboardLink:
    """A link from a series to another dashboard: same cluster and time, these variables set from the series' labels."""
    labels = "".join(f"&var-{variable}=${{__field.labels.{label}}}" for variable, label in variables.items())
    chosen = "${datasource:queryparam}&${namespace:queryparam}&${job:queryparam}&${__url_time_range}"
    return DashboardLink(title).type(model.DashboardLinkType.LINK).url(f"/d/ballast-{name}?{chosen}{labels}")


def _choice(variable: Variable) -> QueryVariable:
    query = {"qryType": 1, "query": variable.query, "refId": "PrometheusVariableQueryEditor-VariableQuery"}
    built = QueryVariable(variable.name).label(variable.label).description(variable.description)
    built.query(query).datasource(SOURCE).refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
    built.sort(model.VariableSort.NATURAL_ASC)
    if not variable.plain:
        built.multi(True).include_all(True).all_value(".*")
        built.current(model.VariableOption(text="All", value="$__all"))
    return built


def _link_to_the_others() -> DashboardLink:
    link = DashboardLink("Ballast").type(model.DashboardLinkType.DASHBOARDS).tags([TAG])
    return link.as_dropdown(False).include_vars(True).keep_time(True)


def _alerts(labels: str) -> AnnotationQuery:
    firing = f'ALERTS{{alertname=~"Ballast.*",alertstate="firing",{labels}}}'
    return AnnotationQuery().name("Alerts").datasource(SOURCE).enable(True).icon_color(RED).expr(firing)


def _thresholds(limits: Sequence[Step]) -> ThresholdsConfig:
    found = [model.Threshold(value=value, color=color) for value, color in limits]
    return ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(found)


def _by_thresholds() -> FieldColor:
    return FieldColor().mode(model.FieldColorModeId.THRESHOLDS)
