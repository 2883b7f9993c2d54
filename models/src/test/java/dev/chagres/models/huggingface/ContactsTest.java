package dev.chagres.models.huggingface;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.io.SafetensorsEntry;
import dev.chagres.io.SafetensorsFile;
import dev.chagres.models.esm.ContactPredictor;
import dev.chagres.models.esm.Esm2;
import java.lang.foreign.MemorySegment;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** Contacts are those that transformers computed, of folders that it wrote. */
@Tag("L0")
class ContactsTest {
    private static int[] ints(Path file, String name) {
        try (SafetensorsFile opened = SafetensorsFile.open(file)) {
            SafetensorsEntry entry = opened.entry(name);
            int[] values = new int[Math.toIntExact(entry.sizes()[0])];
            entry.copyTo(MemorySegment.ofArray(values));
            return values;
        }
    }

    @ParameterizedTest
    @MethodSource("dev.chagres.models.huggingface.StoredModel#all")
    void areThoseOfTransformers(StoredModel stored) {
        Path file = stored.folder().resolve("contacts.safetensors");
        float[] expected = StoredModel.floats(file).get("contacts");
        int[] ids = ints(file, "ids");
        int at = 0;
        int token = 0;
        try (Device device = Device.open();
                Esm2 model = Esm2Checkpoint.open(device, stored.folder(), DType.FLOAT32);
                ContactPredictor predictor = new ContactPredictor(model, Esm2Checkpoint.contactHead(stored.folder()))) {
            for (int length : ints(file, "lengths")) {
                float[][] contacts = predictor.contacts(Arrays.copyOfRange(ids, token, token + length));
                assertEquals(length - 2, contacts.length);
                for (float[] row : contacts) {
                    assertArrayEquals(Arrays.copyOfRange(expected, at, at + row.length), row, (float)
                            (HuggingFaceEsm2Test.SAME / 5));
                    at += row.length;
                }
                token += length;
            }
        }
        assertEquals(expected.length, at);
    }

    @Test
    void otherRegressionsAndLengthsAreRefused() {
        StoredModel stored = StoredModel.all().getFirst();
        try (Device device = Device.open();
                Esm2 model = Esm2Checkpoint.open(device, stored.folder(), DType.FLOAT32);
                ContactPredictor predictor = new ContactPredictor(model, Esm2Checkpoint.contactHead(stored.folder()))) {
            IllegalArgumentException refusal = assertThrows(
                    IllegalArgumentException.class,
                    () -> new ContactPredictor(model, new ContactPredictor.Regression(List.of(1f), 0)));
            assertEquals("regression: expected 4 weights, one of each head of each layer, got 1", refusal.getMessage());
            refusal = assertThrows(IllegalArgumentException.class, () -> predictor.contacts(0, 2));
            assertEquals("tokens: expected 3 to 1026, the context, got 2", refusal.getMessage());
        }
    }

    @Test
    void aFolderWithoutTheHeadIsRefused(@TempDir Path parent) {
        Path folder = parent.resolve("saved");
        try (Device device = Device.open();
                Esm2 model =
                        Esm2Checkpoint.open(device, StoredModel.all().getFirst().folder(), DType.FLOAT32)) {
            Esm2Checkpoint.save(model, folder, SaveConfig.standard());
        }
        CheckpointException refusal = assertThrows(CheckpointException.class, () -> Esm2Checkpoint.contactHead(folder));
        String text = String.valueOf(refusal.getMessage());
        assertTrue(text.contains("esm.contact_head.regression.weight"), text);
        assertTrue(text.contains("expected it for contacts, got none"), text);
    }
}
