package dev.chagres.models.huggingface;

import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.io.TensorSource;
import dev.chagres.io.TensorSpec;
import dev.chagres.models.esm.Esm2;
import dev.chagres.models.esm.Esm2Base;
import dev.chagres.models.esm.Esm2Classifier;
import dev.chagres.parameter.Parameters;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * Writes an ESM-2 to a folder.
 *
 * <p>Threading: the device's thread.
 */
final class Esm2Writer {
    private final Esm2Files files;
    private final Parameters parameters;
    private final SaveConfig config;

    Esm2Writer(Esm2 model, SaveConfig config) {
        this(new Esm2Files(model.config(), model.parameters().dtype(), config.layout()), model.parameters(), config);
    }

    Esm2Writer(Esm2Classifier model, SaveConfig config) {
        this(new Esm2Files(model.config(), config.labels(), model.parameters().dtype()), model.parameters(), config);
    }

    Esm2Writer(Esm2Base model, SaveConfig config) {
        this(new Esm2Files(model.config(), model.pooler(), model.parameters().dtype()), model.parameters(), config);
    }

    private Esm2Writer(Esm2Files files, Parameters parameters, SaveConfig config) {
        this.files = files.ensureForm();
        this.parameters = parameters;
        this.config = config;
    }

    void write(Path folder) {
        CheckpointWriter.write(folder, this::writeFiles);
    }

    private void writeFiles(Path folder) throws IOException {
        if (config.unusedFrom().isPresent()) {
            try (Esm2Source other = Esm2Source.open(config.unusedFrom().get())) {
                writeTensors(folder, other);
            }
        } else {
            writeTensors(folder, null);
        }
        for (Map.Entry<String, byte[]> file : files.files().entrySet()) {
            Files.write(folder.resolve(file.getKey()), file.getValue());
        }
    }

    private void writeTensors(Path folder, @Nullable Esm2Source other) throws IOException {
        Stream stream = parameters.scope().stream();
        try (Scope views = stream.device().openScope(stream)) {
            Map<String, TensorSource> all =
                    CheckpointWriter.sources(files.targets(), parameters, files.paddedRows(), views);
            files.constants().forEach(source -> all.put(source.spec().name(), source));
            if (other != null && !files.isNvidia()) {
                other.unused()
                        .forEach((name, found) -> all.putIfAbsent(files.named(name), copied(files.named(name), found)));
            }
            CheckpointWriter.writeTensors(folder, all, config.shardBytes());
        }
    }

    private static TensorSource copied(String name, CheckpointTensors.Found found) {
        TensorSpec spec =
                new TensorSpec(name, found.entry().dtype(), found.entry().shape());
        return TensorSource.of(spec, found.entry().bytes());
    }
}
