package dev.chagres.samples.tour;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.models.esm.Esm2;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.esm.Esm2Form;
import dev.chagres.models.esm.ProteinEmbeddings;
import dev.chagres.models.huggingface.Esm2Checkpoint;
import dev.chagres.models.huggingface.SaveConfig;
import dev.chagres.samples.service.EmbeddingService;
import dev.chagres.samples.service.ProteinEmbeddingModel;
import dev.chagres.samples.service.ServiceConfig;
import java.io.IOException;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.List;
import java.util.stream.Stream;

/** Serves embeddings of proteins over HTTP, asks for some, and compares them with the model's own. */
final class Sample14Embeddings {
    private static final List<String> PROTEINS = List.of("MKTAYIAKQRQISFVKSHFSRQ", "ACDEFGHIK", "MKLVINGKTLKGEITVE");

    private Sample14Embeddings() {}

    static void run() throws IOException {
        Path folder = Files.createTempDirectory("chagres-sample");
        try {
            serve(folder.resolve("esm2"));
        } finally {
            try (Stream<Path> files = Files.walk(folder)) {
                for (Path file : files.sorted(Comparator.reverseOrder()).toList()) {
                    Files.delete(file);
                }
            }
        }
    }

    private static void serve(Path folder) throws IOException {
        List<float[]> expected;
        try (Device device = Device.open();
                Esm2 model = new Esm2(
                        device, new Esm2Config(2, 32, 4, 64).withForm(Esm2Form.published()), DType.FLOAT32, 5);
                ProteinEmbeddings embeddings = new ProteinEmbeddings(model)) {
            Esm2Checkpoint.save(model, folder, SaveConfig.standard());
            expected = embeddings.mean(PROTEINS);
        }
        try (EmbeddingService service = EmbeddingService.of(folder, ServiceConfig.on(0))) {
            URI address = URI.create("http://localhost:" + service.address().getPort() + "/embeddings");
            ProteinEmbeddingModel model = new ProteinEmbeddingModel(address);
            for (int i = 0; i < PROTEINS.size(); i++) {
                float[] vector = model.embed(PROTEINS.get(i)).content().vector();
                Tour.near("embedding of protein " + i, expected.get(i), vector, 1e-5);
            }
            System.out.println("14 embeddings: " + PROTEINS.size() + " proteins over HTTP, as the model has them");
        }
    }
}
