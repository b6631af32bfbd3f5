"""Requests and answers of the API, as pydantic models."""

from lightretriever.service.schemas.answers import *
from lightretriever.service.schemas.requests import *
