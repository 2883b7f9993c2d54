package dev.chagres.models.huggingface;

import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.models.decoder.Decoder;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;

/**
 * Writes a decoder to a folder.
 *
 * <p>Threading: the device's thread.
 */
final class DecoderWriter {
    private final Decoder model;
    private final DecoderFiles files;
    private final SaveConfig save;

    DecoderWriter(Decoder model, SaveConfig save) {
        this.model = model;
        this.save = save;
        files = new DecoderFiles(
                model.config(),
                save.decoderLayout(),
                model.parameters().dtype(),
                save.tokenizerFrom().orElse(null));
    }

    void write(Path folder) {
        CheckpointWriter.write(folder, this::writeFiles);
    }

    private void writeFiles(Path folder) throws IOException {
        Stream stream = model.parameters().scope().stream();
        try (Scope views = stream.device().openScope(stream)) {
            CheckpointWriter.writeTensors(
                    folder, CheckpointWriter.sources(files.targets(), model.parameters(), 0, views), save.shardBytes());
        }
        for (Map.Entry<String, byte[]> file : files.files().entrySet()) {
            Files.write(folder.resolve(file.getKey()), file.getValue());
        }
    }
}
