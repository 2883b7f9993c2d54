package dev.chagres.samples.service;

import com.fasterxml.jackson.jr.ob.JSON;
import dev.langchain4j.data.embedding.Embedding;
import dev.langchain4j.data.segment.TextSegment;
import dev.langchain4j.model.embedding.EmbeddingModel;
import dev.langchain4j.model.output.Response;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;

/**
 * LangChain4j's model of embeddings, of proteins: each text is a sequence of residues, which an {@link EmbeddingService} embeds.
 *
 * <p>Threading: thread-safe.
 */
public final class ProteinEmbeddingModel implements EmbeddingModel {
    private final HttpClient client = HttpClient.newHttpClient();
    private final URI address;

    /** Asks the service at {@code address}, such as {@code http://localhost:8080/embeddings}. */
    public ProteinEmbeddingModel(URI address) {
        this.address = address;
    }

    @Override
    public Response<List<Embedding>> embedAll(List<TextSegment> segments) {
        List<String> proteins = segments.stream().map(TextSegment::text).toList();
        try {
            String body = Objects.requireNonNull(JSON.std.asString(Map.of("proteins", proteins)));
            HttpResponse<String> response = client.send(
                    HttpRequest.newBuilder(address)
                            .POST(BodyPublishers.ofString(body))
                            .build(),
                    BodyHandlers.ofString());
            Map<String, Object> answer = JSON.std.mapFrom(response.body());
            if (!(answer.get("embeddings") instanceof List<?> rows)) {
                throw new IllegalStateException(address + " answered " + response.statusCode() + ": " + answer);
            }
            return Response.from(
                    rows.stream().map(ProteinEmbeddingModel::embedding).toList());
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException("interrupted while it waited for " + address, interrupted);
        }
    }

    private static Embedding embedding(Object row) {
        List<Float> numbers = new ArrayList<>();
        for (Object number : (List<?>) row) {
            numbers.add(((Number) number).floatValue());
        }
        return Embedding.from(numbers);
    }
}
