package dev.chagres.models.huggingface;

import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.models.esm.Esm2;
import dev.chagres.models.esm.ProteinEmbeddings;
import java.nio.file.Path;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The example of docs/hugging-face.md. */
@Tag("L0")
class HuggingFaceExampleTest {
    @TempDir
    private Path parent;

    /** The first example of the README. */
    @Test
    void opens() {
        Path folder = new StoredModel("token-dropout").folder();
        // @start region="readme"
        float[] mean;
        try (Device device = Device.open();
                Esm2 model = Esm2Checkpoint.open(device, folder, DType.BFLOAT16);
                ProteinEmbeddings embeddings = new ProteinEmbeddings(model)) {
            mean = embeddings.mean(List.of("MKTAYIAKQR")).getFirst();
        }
        // @end
        assertEquals(32, mean.length);
    }

    @Test
    void opensReadsAndSaves() {
        Path folder = new StoredModel("token-dropout").folder();
        Path saved = parent.resolve("saved");
        // @start region="folder"
        float[] mean;
        try (Device device = Device.open();
                Esm2 model = Esm2Checkpoint.open(device, folder, DType.FLOAT32);
                ProteinEmbeddings embeddings = new ProteinEmbeddings(model)) {
            mean = embeddings.mean(List.of("MKTAYIAKQR")).getFirst(); // a number for each hidden column
            Esm2Checkpoint.save(model, saved, SaveConfig.standard());
        }
        // @end
        assertEquals(32, mean.length);
        assertEquals(32, Esm2Checkpoint.config(saved).hidden());
    }
}
