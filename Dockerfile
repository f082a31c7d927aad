# An image that cluster_configs/kubernetes.toml can name: coordinator, scheduler and workers run from it.
#   docker build -t registry.example.org/dpdist:0.1.0 . && docker push registry.example.org/dpdist:0.1.0
FROM python:3.12-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY dpdist ./dpdist
RUN python -m venv /opt/dpdist && /opt/dpdist/bin/pip install --no-cache-dir ".[kubernetes,parquet,s3]"

FROM python:3.12-slim
COPY --from=build /opt/dpdist /opt/dpdist
# Kernels are compiled on first use and kept where the user may write; BLAS has one thread in the local step anyway.
ENV PATH="/opt/dpdist/bin:$PATH" NUMBA_CACHE_DIR="/home/dpdist/kernels" PYTHONUNBUFFERED="1"
RUN useradd --create-home --uid 1000 dpdist
USER 1000
WORKDIR /home/dpdist
CMD ["dpdist", "--help"]
