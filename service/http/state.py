"""What every request needs, in one place: a lookup in the application's state costs as much as all the rest of it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lightretriever.service.http.access import Gate
from lightretriever.service.http.admission import Admission
from lightretriever.service.search.reload import Serving
from lightretriever.service.settings import Settings

if TYPE_CHECKING:
    from lightretriever.service.http.tracing import Tracing

__all__ = ["Desk"]


@dataclass(slots=True)
class Desk:
    """Made with the application; `serving` is set when it starts."""

    settings: Settings
    gate: Gate
    admission: Admission
    tracing: "Tracing | None"
    serving: Serving

    def __init__(self, settings: Settings, tracing: "Tracing | None") -> None:
        self.settings = settings
        self.gate = Gate.open(settings)
        self.admission = Admission(settings.threads(), settings.max_waiting)
        self.tracing = tracing
