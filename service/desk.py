"""What every request needs, in one place: a lookup in the application's state costs as much as all the rest of it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from service.admission import Admission
from service.gate import Gate
from service.settings import Settings
from service.swap import Serving

if TYPE_CHECKING:
    from service.tracing import Tracing

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
