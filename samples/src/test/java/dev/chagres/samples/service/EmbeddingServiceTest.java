package dev.chagres.samples.service;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.bindings.Provider;
import dev.chagres.models.esm.Esm2;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.esm.Esm2Form;
import dev.chagres.models.esm.ProteinEmbeddings;
import dev.chagres.models.huggingface.Esm2Checkpoint;
import dev.chagres.models.huggingface.SaveConfig;
import dev.langchain4j.data.segment.TextSegment;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

@Tag("L0")
@Timeout(60)
class EmbeddingServiceTest {
    /** Products on CUDA run as TF32. */
    private static final float TOLERANCE = Provider.current() == Provider.CUDA ? 1e-2f : 2e-6f;

    private static final int CONTEXT = 66;
    private static final String LETTERS = "LAGVSERTIDPKQNFYMHWC";

    @TempDir
    private Path folder;

    private final HttpClient client = HttpClient.newHttpClient();

    private static URI address(EmbeddingService service) {
        return URI.create("http://localhost:" + service.address().getPort() + "/embeddings");
    }

    private HttpResponse<String> post(EmbeddingService service, String body) throws IOException, InterruptedException {
        HttpRequest request = HttpRequest.newBuilder(address(service))
                .POST(BodyPublishers.ofString(body))
                .build();
        return client.send(request, BodyHandlers.ofString());
    }

    private void refused(EmbeddingService service, int status, String body, String text)
            throws IOException, InterruptedException {
        HttpResponse<String> response = post(service, body);
        assertEquals(status, response.statusCode(), response::body);
        assertTrue(response.body().contains("\"status\":" + status), response::body);
        assertTrue(response.body().contains(text), response::body);
    }

    private static String drawn(Random random) {
        StringBuilder protein = new StringBuilder();
        for (int i = 1 + random.nextInt(CONTEXT - 2); i > 0; i--) {
            protein.append(LETTERS.charAt(random.nextInt(LETTERS.length())));
        }
        return protein.toString();
    }

    /** Each of many requests at once, through LangChain4j's interface, has what the model says of its proteins alone. */
    @Test
    void everyAnswerIsThatOfTheModelAlone() throws Exception {
        try (Device device = Device.open();
                Esm2 model = new Esm2(
                        device, new Esm2Config(2, 32, 4, CONTEXT).withForm(Esm2Form.published()), DType.FLOAT32, 5)) {
            Esm2Checkpoint.save(model, folder.resolve("model"), SaveConfig.standard());
        }
        Random random = new Random(4);
        List<List<String>> asked = new ArrayList<>();
        for (int i = 0; i < 300; i++) {
            asked.add(random.ints(1 + random.nextInt(3))
                    .mapToObj(_ -> drawn(random))
                    .toList());
        }
        List<Future<List<float[]>>> answers = new ArrayList<>();
        ServiceConfig config = ServiceConfig.on(0).withWaiting(1000, Duration.ofSeconds(50));
        try (EmbeddingService service = EmbeddingService.of(folder.resolve("model"), config);
                var threads = Executors.newVirtualThreadPerTaskExecutor()) {
            ProteinEmbeddingModel proteins = new ProteinEmbeddingModel(address(service));
            for (List<String> one : asked) {
                answers.add(threads.submit(() ->
                        proteins.embedAll(one.stream().map(TextSegment::from).toList()).content().stream()
                                .map(embedding -> embedding.vector())
                                .toList()));
            }
            for (Future<List<float[]>> answer : answers) {
                answer.get();
            }
            assertTrue(service.batches() < asked.size(), service.batches() + " batches: none was formed");
            assertEquals(32, proteins.dimension());
            String failure = assertThrows(IllegalStateException.class, () -> proteins.embed("M7"))
                    .getMessage();
            assertTrue(failure.contains("answered 400: "), failure);
        }
        try (Device device = Device.open();
                Esm2 model = Esm2Checkpoint.open(device, folder.resolve("model"), DType.FLOAT32);
                ProteinEmbeddings direct = new ProteinEmbeddings(model)) {
            for (int i = 0; i < asked.size(); i++) {
                List<float[]> answer = answers.get(i).get();
                assertEquals(asked.get(i).size(), answer.size());
                for (int j = 0; j < answer.size(); j++) {
                    float[] expected = direct.mean(List.of(asked.get(i).get(j))).getFirst();
                    assertArrayEquals(
                            expected, answer.get(j), TOLERANCE, "request " + i + ", protein " + j + ", seed 4");
                }
            }
        }
    }

    /** A model that computes when it is let. */
    private static final class Held implements DeviceThread.Embedder {
        private final CountDownLatch begun = new CountDownLatch(1);
        private final CountDownLatch let = new CountDownLatch(1);
        private boolean closed;

        @Override
        public List<float[]> embed(List<String> proteins) {
            begun.countDown();
            try {
                let.await();
            } catch (InterruptedException interrupted) {
                throw new IllegalStateException(interrupted);
            }
            if (proteins.contains("W")) {
                throw new IllegalStateException("the device is gone");
            }
            return proteins.stream().map(one -> new float[] {one.length()}).toList();
        }

        @Override
        public void close() {
            closed = true;
        }
    }

    @Test
    void wrongRequestsAreToldWhatWasExpected() throws Exception {
        Held held = new Held();
        held.let.countDown();
        try (EmbeddingService service =
                new EmbeddingService(() -> held, CONTEXT, ServiceConfig.on(0).withBodyBytes(300))) {
            refused(service, 400, "", "expected JSON");
            refused(service, 400, "[1", "expected JSON");
            refused(service, 400, "{\"proteins\": \"MK\"}", "proteins: expected a list of one or more, got MK");
            refused(service, 400, "{\"proteins\": []}", "proteins: expected a list");
            refused(service, 400, "{\"proteins\": [\"MK\", 5]}", "expected letters of residues in number 1");
            refused(service, 400, "{\"proteins\": [\"MJ\"]}", "got U+004A at 1 in number 0");
            refused(service, 413, "{\"proteins\": [\"" + "M".repeat(CONTEXT - 1) + "\"]}", "up to 64 residues each");
            refused(service, 413, "{\"proteins\": [\"" + "M".repeat(400) + "\"]}", "a body of up to 300 bytes");
            assertEquals(
                    "{\"embeddings\":[[2.0]]}",
                    post(service, "{\"proteins\": [\"MK\"]}").body());
            for (var other : List.of(address(service), address(service).resolve("/x"))) {
                int status = client.send(HttpRequest.newBuilder(other).build(), BodyHandlers.ofString())
                        .statusCode();
                assertEquals(other.getPath().equals("/x") ? 404 : 405, status);
            }
        }
        assertTrue(held.closed);
    }

    /** One request is computed, one waits, and the next is one too many; at the end those two are answered. */
    @Test
    void tooManyAreTurnedAwayAndTheEndAnswersThoseThatWait() throws Exception {
        Held held = new Held();
        Callable<HttpResponse<String>> ask;
        try (var threads = Executors.newVirtualThreadPerTaskExecutor()) {
            EmbeddingService service = new EmbeddingService(
                    () -> held, CONTEXT, ServiceConfig.on(0).withWaiting(1, Duration.ofSeconds(50)));
            ask = () -> post(service, "{\"proteins\": [\"MK\"]}");
            Future<HttpResponse<String>> first = threads.submit(ask);
            held.begun.await();
            List<Future<HttpResponse<String>>> others = new ArrayList<>();
            for (int i = 0; i < 20; i++) {
                others.add(threads.submit(ask));
            }
            // Of 20 one waits, and 19 are turned away at once.
            while (others.stream().filter(Future::isDone).count() < 19) {
                Thread.onSpinWait();
            }
            Future<?> end = threads.submit(service::close);
            HttpResponse<String> late = ask.call();
            while (late.statusCode() == 429) {
                late = ask.call();
            }
            assertEquals(503, late.statusCode());
            held.let.countDown();
            assertEquals(200, first.get().statusCode());
            List<Integer> statuses = new ArrayList<>();
            for (Future<HttpResponse<String>> other : others) {
                statuses.add(other.get().statusCode());
            }
            assertEquals(1, statuses.stream().filter(status -> status == 200).count(), statuses::toString);
            assertEquals(19, statuses.stream().filter(status -> status == 429).count(), statuses::toString);
            end.get();
        }
        assertTrue(held.closed);
    }

    @Test
    void lateAnswersAndFailuresHaveTheirStatus() throws Exception {
        Held held = new Held();
        try (EmbeddingService service =
                new EmbeddingService(() -> held, CONTEXT, ServiceConfig.on(0).withWaiting(5, Duration.ofMillis(20)))) {
            refused(service, 504, "{\"proteins\": [\"MK\"]}", "expected an answer within PT0.02S");
            held.let.countDown();
        }
        Held failing = new Held();
        failing.let.countDown();
        try (EmbeddingService service = new EmbeddingService(() -> failing, CONTEXT, ServiceConfig.on(0))) {
            refused(service, 500, "{\"proteins\": [\"W\"]}", "the model failed: ");
            refused(service, 503, "{\"proteins\": [\"MK\"]}", "the service ends");
        }
        assertTrue(failing.closed);
        assertThrows(
                RuntimeException.class,
                () -> new EmbeddingService(
                        () -> {
                            throw new IllegalStateException("no device");
                        },
                        CONTEXT,
                        ServiceConfig.on(0)));
    }
}
