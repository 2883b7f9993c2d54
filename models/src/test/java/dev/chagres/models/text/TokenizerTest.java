package dev.chagres.models.text;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.jr.ob.JSON;
import java.io.IOException;
import java.net.URISyntaxException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Tokenizers of three kinds, against the library of Python: src/test/vectors/make_tokenizers.py. */
@Tag("L0")
class TokenizerTest {
    @TempDir
    private Path folder;

    static Path stored(String name) {
        try {
            return Path.of(Objects.requireNonNull(
                                    TokenizerTest.class.getResource("/tokenizers/" + name + "/tokenizer.json"))
                            .toURI())
                    .getParent();
        } catch (URISyntaxException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"llama3", "qwen", "sentencepiece"})
    void hasTheTokensOfPython(String name) throws IOException {
        Map<String, Object> all = JSON.std.mapFrom(Files.readString(stored(name).resolve("vectors.json")));
        int compared = 0;
        try (Tokenizer tokenizer = Tokenizer.open(stored(name))) {
            for (Object each : (List<?>) Objects.requireNonNull(all.get("vectors"))) {
                Map<?, ?> vector = (Map<?, ?>) each;
                String text = (String) Objects.requireNonNull(vector.get("text"));
                int[] expected = ((List<?>) Objects.requireNonNull(vector.get("ids")))
                        .stream().mapToInt(id -> (Integer) id).toArray();
                boolean special = (Boolean) Objects.requireNonNull(vector.get("special"));
                int[] actual = special ? tokenizer.encode(text) : tokenizer.encodeInside(text);
                assertArrayEquals(expected, actual, text);
                assertEquals(vector.get("decoded"), tokenizer.decode(actual), text);
                compared++;
            }
            assertEquals(420, tokenizer.encodeInside("<|begin|>")[0] + (name.equals("sentencepiece") ? 419 : 0));
        }
        assertEquals(18, compared);
    }

    /** Whatever the text, tokens of bytes give it back. */
    @Test
    void longTextsAreNotCut() {
        String text = "x y\u0000 \ud83d\ude00 ".repeat(5000);
        try (Tokenizer tokenizer = Tokenizer.open(stored("qwen"))) {
            int[] tokens = tokenizer.encode(text);
            assertTrue(tokens.length > 10_000);
            assertEquals(text, tokenizer.decode(tokens));
            assertEquals("", tokenizer.decode());
        }
    }

    @Test
    void refusesWhatIsNoTokenizerAndNoText() throws IOException {
        Path file = folder.resolve("tokenizer.json");
        assertEquals(file + ": expected a file, got none", refusal());
        Files.writeString(folder.resolve("tokenizer.model"), "x");
        assertTrue(refusal().startsWith(file + ": expected a file, got none, but tokenizer.model, which transformers"));
        for (String text : List.of("", "{}", "[1]", "{\"model\": {\"type\": \"BPE\"}}", "\u0000")) {
            Files.writeString(file, text);
            assertTrue(refusal().startsWith(file + ": expected a tokenizer: "), refusal());
        }
        Tokenizer tokenizer = Tokenizer.open(stored("llama3"));
        assertEquals(
                "text: expected Unicode characters, got half of a surrogate pair, d83d, at 1",
                assertThrows(IllegalArgumentException.class, () -> tokenizer.encode("x\ud83d"))
                        .getMessage());
        assertEquals(
                "text: expected Unicode characters, got half of a surrogate pair, de00, at 0",
                assertThrows(IllegalArgumentException.class, () -> tokenizer.encodeInside("\ude00"))
                        .getMessage());
        assertEquals(
                "tokens: expected at least 0, got -1 at 1",
                assertThrows(IllegalArgumentException.class, () -> tokenizer.decode(1, -1))
                        .getMessage());
        assertEquals("", tokenizer.decode(1_000_000), "a token that does not exist has no text");
        tokenizer.close();
        tokenizer.close();
        assertEquals(
                "the tokenizer of " + stored("llama3").resolve("tokenizer.json") + " is closed",
                assertThrows(IllegalStateException.class, () -> tokenizer.encode("x"))
                        .getMessage());
    }

    private String refusal() {
        return assertThrows(TextException.class, () -> Tokenizer.open(folder)).getMessage();
    }
}
