package dev.chagres.models.huggingface;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.io.SafetensorsException;
import dev.chagres.models.decoder.Decoder;
import dev.chagres.models.decoder.DecoderConfig;
import dev.chagres.models.decoder.SpecialTokens;
import dev.chagres.pass.Pass;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Objects;
import java.util.TreeMap;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Folders of decoders in which one thing is another: each is refused with file and field or tensor, or gives the right model. */
@Tag("L0")
@Timeout(600)
class MutatedDecoderTest {
    private static final int FOLDERS = 480;

    @TempDir
    private Path parent;

    @Test
    void isRefusedOrRight() throws IOException {
        var stored = StoredModel.decoders();
        TreeMap<String, Integer> refused = new TreeMap<>();
        int right = 0;
        try (Device device = Device.open();
                Pass pass = Pass.evaluation(device)) {
            for (int i = 0; i < FOLDERS; i++) {
                StoredModel one = stored.get(i % stored.size());
                Path folder = parent.resolve("folder" + i);
                String what = i + ", " + one + ", " + new MutatedFolder(folder, i).write(one);
                String reason = refusal(device, folder, one, what, pass);
                if (reason.isEmpty()) {
                    right++;
                } else {
                    refused.merge(reason, 1, Integer::sum);
                }
            }
        }
        int count = refused.values().stream().mapToInt(Integer::intValue).sum();
        assertTrue(count > FOLDERS / 3 && right > FOLDERS / 10, count + " refused, " + right + " right");
        assertTrue(refused.size() > 30, "many fields and tensors are refused, got " + refused);
    }

    /** Returns the part at fault; nothing if the model was opened. */
    private static String refusal(Device device, Path folder, StoredModel stored, String what, Pass pass) {
        Decoder model;
        try {
            model = (Decoder) Models.open(device, folder, DType.FLOAT32);
        } catch (CheckpointException refusal) {
            String text = Objects.requireNonNull(refusal.getMessage());
            assertTrue(text.startsWith(folder.toString()), what + ": " + text);
            assertTrue(
                    text.length() < 1200 && (refusal.part().isPresent() || Files.exists(refusal.file())),
                    what + ": " + text);
            return refusal.part().orElse(refusal.file().toString());
        } catch (SafetensorsException refusal) {
            assertTrue(String.valueOf(refusal.getMessage()).startsWith(folder.toString()), what + ": " + refusal);
            return "safetensors";
        } catch (RuntimeException | Error other) {
            throw new AssertionError(what, other);
        }
        try (model) {
            compare(model, stored, what, pass);
        }
        return "";
    }

    /** Where the change is one of the model's numbers, the model must be another one. */
    private static void compare(Decoder model, StoredModel stored, String what, Pass pass) {
        DecoderConfig usual = DecoderCheckpoint.config(stored.folder()).withTokens(SpecialTokens.none());
        DecoderConfig own = model.config().withTokens(SpecialTokens.none());
        if (!own.equals(usual)) {
            assertTrue(what.contains("config.json with"), what);
            assertTrue(
                    what.matches(
                            ".* (rms_norm_eps|rope_\\w+|\\w*sliding_window|max_\\w+|layer_types|head_dim|byte \\d+)$"),
                    what);
            assertEquals(usual.sizes().withContext(own.sizes().context()), own.sizes(), what);
            return;
        }
        HuggingFaceDecoderTest.begin(stored, pass);
        float[] logits = HuggingFaceDecoderTest.used(
                model, model.logits(HuggingFaceDecoderTest.ids(stored, pass), pass), pass.device());
        HuggingFaceEsm2Test.assertClose(
                what, HuggingFaceEsm2Test.vector(stored.vectors(), "logits"), logits, HuggingFaceDecoderTest.TOLERANCE);
    }
}
