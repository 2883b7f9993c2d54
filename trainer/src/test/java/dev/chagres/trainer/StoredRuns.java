package dev.chagres.trainer;

import com.fasterxml.jackson.jr.ob.JSON;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.TreeMap;
import org.jspecify.annotations.Nullable;

/**
 * Trains as each line {@code NAME: train OPTIONS} of a file says, and writes these lines, each followed by what its run computed:
 * the numbers of each step, and a digest of all tensors that it saved.
 */
final class StoredRuns {
    private static final String TRAIN = ": train ";
    private static final List<String> NUMBERS = List.of("loss", "gradNorm", "learningRate");

    private final Path report;
    private final Path state;
    private final List<String> lines = new ArrayList<>();
    private final List<String> failures = new ArrayList<>();

    private StoredRuns(Path folder) {
        report = folder.resolve("report.jsonl");
        state = folder.resolve("state.safetensors");
    }

    /** Takes the file with the lines, and the one to write. */
    public static void main(String[] arguments) throws IOException {
        Path output = Path.of(arguments[1]).toAbsolutePath();
        var runs = new StoredRuns(output.getParent());
        for (String line : Files.readAllLines(Path.of(arguments[0]))) {
            int end = line.indexOf(TRAIN);
            if (end > 0 && !line.startsWith("#")) {
                runs.lines.add(line);
                runs.train(line.substring(0, end), line.substring(end + TRAIN.length()));
            }
        }
        if (!runs.failures.isEmpty()) {
            throw new IllegalStateException(String.join("\n", runs.failures));
        }
        Files.write(output, runs.lines);
    }

    private void train(String name, String options) throws IOException {
        var told = new ByteArrayOutputStream();
        String all = options + " --report " + report + " --save " + state;
        int status = Train.run(
                DevicePlatform.opener(),
                new StandardOutput(told, StandardCharsets.UTF_8),
                new PrintStream(told, true, StandardCharsets.UTF_8),
                all.split(" ", -1));
        if (status != 0) {
            failures.add(name + ": " + told.toString(StandardCharsets.UTF_8));
            return;
        }
        List<String> steps = Files.readAllLines(report);
        for (String step : steps.subList(1, steps.size())) {
            addStep(name, JSON.std.mapFrom(step));
        }
        lines.add(name + ", saved: sha256=" + digestOfTensors());
    }

    private void addStep(String name, Map<String, Object> step) throws IOException {
        String begin = name + ", step " + step.get("step");
        var line = new StringBuilder(begin).append(':');
        for (String key : NUMBERS) {
            line.append(' ').append(key).append('=').append(bits((Number) step.get(key)));
        }
        lines.add(line.toString());
        Object casts = step.get("casts");
        if (casts != null) {
            byte[] text = JSON.std.asString(casts).getBytes(StandardCharsets.UTF_8);
            lines.add(begin + ", casts: sha256=" + HexFormat.of().formatHex(sha256().digest(text)));
        }
    }

    /** The report has a float as the shortest number that tells it from its neighbours, and nothing for what is not finite. */
    private static String bits(@Nullable Number value) {
        if (value == null) {
            return "NaN";
        }
        double number = value.doubleValue();
        float narrow = (float) number;
        return Double.parseDouble(Float.toString(narrow)) == number
                ? Float.toHexString(narrow)
                : Double.toHexString(number);
    }

    /** Names, types, shapes and bytes, by name: where they lie in the file does not count, nor do its texts. */
    private String digestOfTensors() throws IOException {
        ByteBuffer file = ByteBuffer.wrap(Files.readAllBytes(state)).order(ByteOrder.LITTLE_ENDIAN);
        byte[] header = new byte[Math.toIntExact(file.getLong())];
        file.get(header);
        MessageDigest digest = sha256();
        var tensors = new TreeMap<>(JSON.std.mapFrom(new String(header, StandardCharsets.UTF_8)));
        tensors.remove("__metadata__");
        for (var entry : tensors.entrySet()) {
            Map<?, ?> tensor = (Map<?, ?>) entry.getValue();
            String described = entry.getKey() + " " + tensor.get("dtype") + " " + tensor.get("shape");
            digest.update(described.getBytes(StandardCharsets.UTF_8));
            List<?> offsets = (List<?>) Objects.requireNonNull(tensor.get("data_offsets"));
            int begin = ((Number) offsets.get(0)).intValue();
            int end = ((Number) offsets.get(1)).intValue();
            digest.update(file.slice(Long.BYTES + header.length + begin, end - begin));
        }
        return HexFormat.of().formatHex(digest.digest());
    }

    private static MessageDigest sha256() {
        try {
            return MessageDigest.getInstance("SHA-256");
        } catch (NoSuchAlgorithmException e) {
            throw new IllegalStateException(e); // Every JDK has it.
        }
    }
}
