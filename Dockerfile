# Two images from one file:
#   docker build --target render -t scaleout:render .      no torch, any CPU
#   docker build --target engine -t scaleout:engine .      with torch
# One entry point; SCALEOUT_MODE chooses what runs and which file of /etc/scaleout is read:
#   docker run -p 8100:8000 -e SCALEOUT_MODE=render-only -e SCALEOUT_MODEL=Qwen/Qwen3-0.6B scaleout:render
#   docker run -p 8200:8000 --gpus all -e SCALEOUT_MODE=tokens-only -e SCALEOUT_MODEL=Qwen/Qwen3-0.6B scaleout:engine
ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS source
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY scaleout scaleout
RUN python -m venv /opt/scaleout

FROM source AS build-render
RUN /opt/scaleout/bin/pip install --no-cache-dir -c constraints.txt .

FROM source AS build-engine
RUN /opt/scaleout/bin/pip install --no-cache-dir -c constraints.txt '.[engine]'

FROM python:${PYTHON}-slim AS base
RUN useradd --create-home --uid 10001 scaleout
COPY conf /etc/scaleout
ENV PATH=/opt/scaleout/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    SCALEOUT_CONFIG=/etc/scaleout
USER 10001
WORKDIR /home/scaleout
EXPOSE 8000
STOPSIGNAL SIGTERM
# /live, not /ready: a server that still loads its model is well, and must not be restarted for it.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(f\"http://127.0.0.1:{os.environ.get('SCALEOUT_PORT', '8000')}/live\", timeout=2)"]
ENTRYPOINT ["scaleout"]

FROM base AS render
COPY --from=build-render /opt/scaleout /opt/scaleout

FROM base AS engine
COPY --from=build-engine /opt/scaleout /opt/scaleout
