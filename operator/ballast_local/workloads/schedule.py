"""Cron schedules: five fields with names, steps and ranges, or macros such as @hourly. PURE."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

_MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_MONTHS = {
    name: index + 1
    for index, name in enumerate(["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"])
}
_DAYS = {name: index for index, name in enumerate(["sun", "mon", "tue", "wed", "thu", "fri", "sat"])}
HORIZON = timedelta(days=366 * 5)


def _value(text: str, names: dict[str, int]) -> int:
    return names[text.lower()] if text.lower() in names else int(text)


def _field(text: str, low: int, high: int, names: dict[str, int]) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        span, _, step_text = part.partition("/")
        step = int(step_text) if step_text else 1
        if span in ("*", "?"):
            first, last = low, high
        elif "-" in span:
            first, last = (_value(end, names) for end in span.split("-", 1))
        else:
            first = _value(span, names)
            last = high if step_text else first
        if step < 1 or not low <= first <= last <= high:
            raise ValueError(f"{part!r} is not between {low} and {high}")
        found.update(range(first, last + 1, step))
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class Schedule:
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_day: bool
    any_weekday: bool
    zone: tzinfo

    @classmethod
    def parse(cls, text: str, zone: str | None = None) -> "Schedule":
        """Parse a schedule; raises ValueError if it is invalid."""
        fields = _MACROS.get(text.strip(), text).split()
        if len(fields) != 5:
            raise ValueError(f"expected exactly 5 fields, found {len(fields)}: [{' '.join(fields)}]")
        names: tuple[dict[str, int], ...] = ({}, {}, {}, _MONTHS, _DAYS)
        parsed = [_field(one, *bounds, known) for one, bounds, known in zip(fields, _BOUNDS, names, strict=True)]
        weekdays = frozenset(day % 7 for day in parsed[4])
        where: tzinfo = ZoneInfo(zone) if zone else UTC
        return cls(parsed[0], parsed[1], parsed[2], parsed[3], weekdays, fields[2] in "*?", fields[4] in "*?", where)

    def _day_fits(self, moment: datetime) -> bool:
        by_day, by_weekday = moment.day in self.days, moment.isoweekday() % 7 in self.weekdays
        if self.any_day or self.any_weekday:
            return by_day and by_weekday
        return by_day or by_weekday

    def next_after(self, moment: datetime) -> datetime:
        """The first scheduled time after a moment; raises ValueError if there is none for years (30 February)."""
        at = moment.astimezone(self.zone).replace(second=0, microsecond=0) + timedelta(minutes=1)
        end = at + HORIZON
        while at < end:
            if at.month not in self.months or not self._day_fits(at):
                at = at.replace(hour=0, minute=0) + timedelta(days=1)
            elif at.hour not in self.hours:
                at = at.replace(minute=0) + timedelta(hours=1)
            elif at.minute not in self.minutes:
                at += timedelta(minutes=1)
            elif (found := at.astimezone(UTC)) > moment:
                return found
            else:  # the hour that occurs twice when daylight saving time ends
                at += timedelta(minutes=1)
        raise ValueError("the schedule never comes due")

    def latest_between(self, after: datetime, until: datetime) -> datetime | None:
        """The last scheduled time in (after, until]. Searched from the end, as it may be a year of minutes."""
        window = timedelta(hours=1)
        while True:
            start = max(after, until - window)
            found, at = None, self.next_after(start)
            while at <= until:
                found, at = at, self.next_after(at)
            if found is not None or start == after:
                return found
            window *= 8
