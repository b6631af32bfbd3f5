"""Requests and answers of the API, as pydantic models."""

from lightretriever.service.schemas import answers, facts, filters, requests
from lightretriever.service.schemas.answers import *
from lightretriever.service.schemas.base import LegName, Matched, Mode, Normalization, Plain
from lightretriever.service.schemas.facts import *
from lightretriever.service.schemas.filters import *
from lightretriever.service.schemas.requests import *

__all__ = ["LegName", "Matched", "Mode", "Normalization", "Plain"]
__all__ += answers.__all__
__all__ += facts.__all__
__all__ += filters.__all__
__all__ += requests.__all__
