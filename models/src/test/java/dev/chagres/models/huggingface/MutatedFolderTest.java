package dev.chagres.models.huggingface;

import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.attention.Sequences;
import dev.chagres.io.SafetensorsException;
import dev.chagres.models.esm.Esm2;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.pass.Pass;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Objects;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Folders in which one thing is another: each is refused with file and field or tensor, or gives the right model. */
@Tag("L0")
@Timeout(600)
class MutatedFolderTest {
    private static final int FOLDERS = 2000;

    @TempDir
    private Path parent;

    @Test
    void isRefusedOrRight() throws IOException {
        int refused = 0;
        int right = 0;
        try (Device device = Device.open();
                Pass pass = Pass.evaluation(device)) {
            for (int i = 0; i < FOLDERS; i++) {
                StoredModel stored = StoredModel.all().get(i % 2);
                Path folder = parent.resolve("folder" + i);
                String what = i + ", " + new MutatedFolder(folder, i).write(stored);
                if (isRefused(device, folder, stored, what, pass)) {
                    refused++;
                } else {
                    right++;
                }
            }
        }
        assertTrue(refused > FOLDERS / 2 && right > FOLDERS / 10, refused + " refused, " + right + " right");
    }

    private static boolean isRefused(Device device, Path folder, StoredModel stored, String what, Pass pass) {
        Esm2 model;
        try {
            model = (Esm2) Models.open(device, folder, DType.FLOAT32);
        } catch (CheckpointException refusal) {
            String text = Objects.requireNonNull(refusal.getMessage());
            assertTrue(text.startsWith(folder.toString()), what + ": " + text);
            assertTrue(
                    text.length() < 1200 && (refusal.part().isPresent() || Files.exists(refusal.file())),
                    what + ": " + text);
            return true;
        } catch (SafetensorsException refusal) {
            assertTrue(String.valueOf(refusal.getMessage()).startsWith(folder.toString()), what + ": " + refusal);
            return true;
        } catch (RuntimeException | Error other) {
            throw new AssertionError(what, other);
        }
        try (model) {
            compare(model, stored, what, pass);
        }
        return false;
    }

    /** Where the change is one of the model's numbers, the model must be another one. */
    private static void compare(Esm2 model, StoredModel stored, String what, Pass pass) {
        Esm2Config usual = Esm2Checkpoint.config(stored.folder());
        Esm2Config own = model.config();
        if (!own.form().equals(usual.form())) {
            // Without the frequencies' tensor they are computed, as transformers does.
            assertTrue(
                    what.contains("layer_norm_eps")
                            || what.contains("token_dropout")
                            || what.contains("config.json with ")
                            || what.matches(".*without esm.encoder.*inv_freq"),
                    what);
            return;
        }
        if (own.context() < usual.context()) {
            assertTrue(what.contains("config.json"), what);
            return;
        }
        pass.begin();
        pass.sequences(Sequences.packed(pass.scope(), stored.ints("lengths")));
        float[] logits = HuggingFaceEsm2Test.used(
                model.logits(HuggingFaceEsm2Test.tensor(stored.ints("ids"), pass), pass), pass.device());
        float[] expected = Objects.requireNonNull(stored.vectors().get("logits"));
        HuggingFaceEsm2Test.assertClose(what, expected, logits, HuggingFaceEsm2Test.TOLERANCE);
    }
}
