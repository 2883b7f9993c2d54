package dev.chagres.trainer.command;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.models.esm.Esm2;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.esm.Esm2Form;
import dev.chagres.models.huggingface.Esm2Checkpoint;
import dev.chagres.models.huggingface.SaveConfig;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;

/** A small ESM-2 in a folder, a FASTA file, and what a command says of them. */
final class SmallModel {
    static final int HIDDEN = 32;
    static final int CONTEXT = 34;
    static final List<String> PROTEINS = List.of(
            "MKTAYIAKQRQISFVKSHFSRQ",
            "LAGVSERTIDPKQNFYMHWCLAGVSERTIDPKQNFYMHWCLAGVSERTIDPKQNFYMHWCLAGV",
            "ACD",
            "MKLVINGKTLKGEITVEAPDATAEEFAKALA",
            "MKTAYIAKQRQISFVKSHFSRQ");

    /** Runs a command. */
    interface Command {
        int run(PrintStream out, PrintStream err, String... arguments);
    }

    private final Path folder;
    private final Path fasta;
    private String told = "";

    SmallModel(Path temporary) throws IOException {
        folder = temporary.resolve("model");
        fasta = temporary.resolve("proteins.fasta");
        try (Device device = Device.open();
                Esm2 model = new Esm2(device, config(), DType.FLOAT32, 5)) {
            Esm2Checkpoint.save(model, folder, SaveConfig.standard());
        }
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < PROTEINS.size(); i++) {
            text.append(">P")
                    .append(i % 4)
                    .append(" text\n")
                    .append(PROTEINS.get(i))
                    .append('\n');
        }
        Files.writeString(fasta, text);
    }

    static Esm2Config config() {
        return new Esm2Config(2, HIDDEN, 4, CONTEXT).withForm(Esm2Form.published());
    }

    Path folder() {
        return folder;
    }

    Path fasta() {
        return fasta;
    }

    /** Runs a command with the folder and further arguments, and returns its exit status. */
    int run(Command command, String... more) {
        var out = new ByteArrayOutputStream();
        PrintStream stream = new PrintStream(out, true, StandardCharsets.UTF_8);
        String[] arguments = new String[more.length + 1];
        arguments[0] = "--model=" + folder;
        System.arraycopy(more, 0, arguments, 1, more.length);
        int status = command.run(stream, stream, arguments);
        told = out.toString(StandardCharsets.UTF_8);
        return status;
    }

    /** Returns what the latest command has printed. */
    String told() {
        return told;
    }
}
