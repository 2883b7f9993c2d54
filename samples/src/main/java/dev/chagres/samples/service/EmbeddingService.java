package dev.chagres.samples.service;

import com.fasterxml.jackson.jr.ob.JSON;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.models.data.EsmVocabulary;
import dev.chagres.models.esm.Esm2;
import dev.chagres.models.esm.ProteinEmbeddings;
import dev.chagres.models.huggingface.Esm2Checkpoint;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Supplier;

/**
 * Mean embeddings of proteins over HTTP: {@code POST /embeddings} with {@code {"proteins": ["MKTAY", …]}} answers {@code {"embeddings": [[…],
 * …]}}. A virtual thread serves each request; one thread has the device.
 *
 * <p>Errors are {@code {"error": {"status": 429, "message": …}}}: 400 the request is wrong, 413 it or a protein is too long, 429 too many
 * wait, 500 the model failed, 503 the service ends, 504 the answer takes too long.
 *
 * <p>Threading: thread-safe.
 */
public final class EmbeddingService implements AutoCloseable {
    private final ServiceConfig config;
    private final int mostResidues;
    private final DeviceThread device;
    private final HttpServer server;
    private final ExecutorService threads = Executors.newVirtualThreadPerTaskExecutor();

    /** A request that is answered with an error. */
    private static final class Refusal extends Exception {
        private static final long serialVersionUID = 1L;
        private final int status;

        Refusal(int status, String message) {
            super(message);
            this.status = status;
        }
    }

    /**
     * Serves what {@code open} makes, on the loopback address.
     *
     * @param context longest protein in tokens, with {@code <cls>} and {@code <eos>}
     */
    EmbeddingService(Supplier<? extends DeviceThread.Embedder> open, int context, ServiceConfig config)
            throws IOException {
        this.config = config;
        mostResidues = context - 2;
        server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), config.port()), 0);
        try {
            device = new DeviceThread(open, config.batchTokens(), config.waiting());
        } catch (RuntimeException | Error failure) {
            server.stop(0);
            throw failure;
        }
        server.setExecutor(threads);
        server.createContext("/embeddings", exchange -> serve(exchange, "POST", this::embeddings));
        server.createContext("/health", exchange -> serve(exchange, "GET", _ -> Map.of("status", "ok")));
        server.createContext(
                "/",
                exchange -> serve(exchange, exchange.getRequestMethod(), _ -> {
                    throw new Refusal(404, "expected /embeddings or /health");
                }));
        server.start();
    }

    /**
     * Serves the ESM-2 in a folder of Hugging Face.
     *
     * @throws IOException when the port is not free
     */
    public static EmbeddingService of(Path folder, ServiceConfig config) throws IOException {
        return new EmbeddingService(
                () -> new Model(folder), Esm2Checkpoint.config(folder).context(), config);
    }

    /** The model, on the device's thread. */
    private static final class Model implements DeviceThread.Embedder {
        private final Device device = Device.open();
        private final Esm2 model;
        private final ProteinEmbeddings embeddings;

        Model(Path folder) {
            try {
                model = Esm2Checkpoint.open(device, folder, DType.FLOAT32);
                embeddings = new ProteinEmbeddings(model);
            } catch (RuntimeException | Error failure) {
                device.close();
                throw failure;
            }
        }

        @Override
        public List<float[]> embed(List<String> proteins) {
            return embeddings.mean(proteins);
        }

        @Override
        public void close() {
            embeddings.close();
            model.close();
            device.close();
        }
    }

    /** Returns where it listens. */
    public InetSocketAddress address() {
        return server.getAddress();
    }

    /** Returns how many batches were computed. */
    long batches() {
        return device.batches();
    }

    /** Makes the answer of a request. */
    private interface Answer {
        Map<String, Object> of(HttpExchange exchange) throws Refusal, IOException;
    }

    private void serve(HttpExchange exchange, String method, Answer answer) throws IOException {
        try (exchange) {
            try {
                if (!exchange.getRequestMethod().equals(method)) {
                    throw new Refusal(405, "expected " + method + ", got " + exchange.getRequestMethod());
                }
                send(exchange, 200, answer.of(exchange));
            } catch (Refusal refusal) {
                if (refusal.status == 429 || refusal.status == 503) {
                    exchange.getResponseHeaders().set("Retry-After", "1");
                }
                send(
                        exchange,
                        refusal.status,
                        Map.of("error", Map.of("status", refusal.status, "message", text(refusal))));
            }
        }
    }

    private static String text(Exception failure) {
        return Objects.requireNonNullElse(failure.getMessage(), failure.toString());
    }

    private static void send(HttpExchange exchange, int status, Map<String, Object> fields) throws IOException {
        byte[] body = Objects.requireNonNull(JSON.std.asString(fields)).getBytes(StandardCharsets.UTF_8);
        exchange.getResponseHeaders().set("Content-Type", "application/json");
        exchange.sendResponseHeaders(status, body.length);
        exchange.getResponseBody().write(body);
    }

    private Map<String, Object> embeddings(HttpExchange exchange) throws Refusal, IOException {
        byte[] body = exchange.getRequestBody().readNBytes(config.bodyBytes() + 1);
        if (body.length > config.bodyBytes()) {
            throw new Refusal(413, "expected a body of up to " + config.bodyBytes() + " bytes, got a longer one");
        }
        return Map.of("embeddings", vectors(proteins(body)));
    }

    private List<String> proteins(byte[] body) throws Refusal {
        Object given;
        try {
            given = JSON.std.mapFrom(body).get("proteins");
        } catch (IOException | RuntimeException wrong) {
            throw new Refusal(400, "expected JSON, {\"proteins\": [\"MKTAY\", ...]}, got another text");
        }
        if (!(given instanceof List<?> list) || list.isEmpty()) {
            throw new Refusal(400, "proteins: expected a list of one or more, got " + (given == null ? "none" : given));
        }
        List<String> proteins = new ArrayList<>();
        for (Object one : list) {
            if (!(one instanceof String protein) || protein.isEmpty()) {
                throw new Refusal(400, "proteins: expected letters of residues in number " + proteins.size());
            }
            if (protein.length() > mostResidues) {
                throw new Refusal(
                        413,
                        "proteins: expected up to " + mostResidues + " residues each, got " + protein.length()
                                + " in number " + proteins.size());
            }
            for (int i = 0; i < protein.length(); i++) {
                char letter = protein.charAt(i);
                if (letter > 127 || EsmVocabulary.residueToken((byte) letter) < 0) {
                    throw new Refusal(
                            400,
                            "proteins: expected letters of residues, got " + String.format("U+%04X", (int) letter)
                                    + " at " + i + " in number " + proteins.size());
                }
            }
            proteins.add(protein);
        }
        return proteins;
    }

    private List<float[]> vectors(List<String> proteins) throws Refusal {
        CompletableFuture<List<float[]>> answer;
        try {
            answer = device.submit(proteins);
        } catch (RejectedExecutionException full) {
            throw new Refusal(429, text(full) + ", up to " + config.waiting() + "; ask again later");
        } catch (IllegalStateException ending) {
            throw new Refusal(503, text(ending));
        }
        try {
            return answer.get(config.patience().toNanos(), TimeUnit.NANOSECONDS);
        } catch (TimeoutException late) {
            answer.cancel(false); // The device's thread leaves it out.
            throw new Refusal(504, "expected an answer within " + config.patience() + ", got none");
        } catch (InterruptedException ending) {
            Thread.currentThread().interrupt();
            throw new Refusal(503, "the service ends");
        } catch (ExecutionException failure) {
            throw new Refusal(500, "the model failed: " + failure.getCause());
        }
    }

    /** Answers 503 from now on, ends what is under way, and frees the device. A second call does nothing. */
    @Override
    public void close() {
        device.close();
        threads.shutdown();
        try {
            boolean _ = threads.awaitTermination(config.ending().toNanos(), TimeUnit.NANOSECONDS);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
        server.stop(0);
    }

    /**
     * Serves a folder until the process ends: {@code FOLDER [PORT]}.
     *
     * @throws IOException when the port is not free
     */
    public static void main(String[] words) throws IOException {
        if (words.length < 1 || words.length > 2) {
            System.err.println("Usage: EmbeddingService FOLDER [PORT]");
            System.exit(2);
        }
        var service = of(Path.of(words[0]), ServiceConfig.on(words.length == 2 ? Integer.parseInt(words[1]) : 8080));
        Runtime.getRuntime().addShutdownHook(new Thread(service::close, "shutdown"));
        System.out.println("http://" + service.address().getHostString() + ":"
                + service.address().getPort() + "/embeddings");
    }
}
