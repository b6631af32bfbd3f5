"""Requests and answers of the API, as pydantic models."""

from lightretriever.service.schemas.answers import *
from lightretriever.service.schemas.base import *
from lightretriever.service.schemas.facts import *
from lightretriever.service.schemas.filters import *
from lightretriever.service.schemas.requests import *
