# The service alone: no language model, no torch, no compiler, no package manager of Python's in it.
#
#   docker build --tag lightretriever-search .
#   docker run --rm --read-only --tmpfs /tmp --volume "$PWD/out/bundle:/bundle:ro" --publish 127.0.0.1:8080:8080 lightretriever-search
#
# BASE is any Linux with glibc, libstdc++ and Python 3.11 or newer. BUILD_BASE is the same with `venv`. Pass a pip.conf (mirror, proxy) with --secret id=pip.conf,src=FILE; the image does not keep it.
ARG BASE=docker.io/library/python:3.11-slim-bookworm
ARG BUILD_BASE=docker.io/library/python:3.11-slim-bookworm

FROM ${BUILD_BASE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
RUN python3 -m venv /opt/lightretriever
WORKDIR /src
COPY deploy/requirements deploy/requirements
# The lists are complete and have hashes: pip takes these files and no others, and resolves nothing. Of pyserini only the
# jar is in use, so its own requirements, and its minimum of Python, are ignored.
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    /opt/lightretriever/bin/pip install --quiet --no-compile --no-deps --require-hashes \
        --requirement deploy/requirements/build.txt \
    && /opt/lightretriever/bin/pip install --quiet --no-compile --no-deps --require-hashes --ignore-requires-python \
        --no-build-isolation --requirement deploy/requirements/runtime.txt --requirement deploy/requirements/tracing.txt \
        --requirement deploy/requirements/cluster.txt
COPY . .
# The wheel of `make wheel`, whose one jar takes the place of pyserini's.
RUN /opt/lightretriever/bin/pip install --quiet --no-compile --no-deps --no-build-isolation . \
    && /opt/lightretriever/bin/python deploy/wheel/build.py --no-demo --output /dist \
    && /opt/lightretriever/bin/pip install --quiet --no-compile --no-deps --force-reinstall --no-index /dist/*.whl \
    && /opt/lightretriever/bin/python deploy/image/slim.py /opt/lightretriever \
    && /opt/lightretriever/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/lightretriever/lib

FROM ${BASE}
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="LightRetriever Search" \
    org.opencontainers.image.description="Hybrid search with the ranking of a neural model and no model in the query path" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/lightretriever /opt/lightretriever
ENV PATH=/opt/lightretriever/bin:/usr/local/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# Fails where BASE and BUILD_BASE don't have the same Python in the same place.
RUN lightretriever --help >/dev/null
# The mount point of the bundle.
WORKDIR /bundle
USER 10001:10001
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python3", "-I", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8080/readyz', timeout=4)"]
ENTRYPOINT ["lightretriever"]
CMD ["serve", "/bundle", "--host", "0.0.0.0", "--port", "8080"]
