package dev.chagres.trainer.command;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.jr.ob.JSON;
import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.bindings.Provider;
import dev.chagres.io.SafetensorsFile;
import dev.chagres.models.esm.Esm2;
import dev.chagres.models.esm.Esm2Base;
import dev.chagres.models.esm.ProteinEmbeddings;
import dev.chagres.models.huggingface.Esm2Checkpoint;
import dev.chagres.models.huggingface.SaveConfig;
import dev.chagres.trainer.command.PackedModel.Batch;
import dev.hardwood.InputFile;
import dev.hardwood.reader.ParquetFileReader;
import dev.hardwood.row.PqList;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

@Tag("L0")
class EmbedTest {
    private static final int MOST = SmallModel.CONTEXT - 2;
    /** The command computes in BF16 on CUDA. */
    private static final float TOLERANCE = Provider.current() == Provider.CUDA ? 3e-2f : 2e-6f;

    @TempDir
    private Path temporary;

    private SmallModel model;
    private Path npy;

    @BeforeEach
    void makeModel() throws IOException {
        model = new SmallModel(temporary);
        npy = temporary.resolve("e.npy");
    }

    private void embed(String... more) {
        String[] arguments = Arrays.copyOf(more, more.length + 1);
        arguments[more.length] = "--fasta=" + model.fasta();
        assertEquals(0, model.run(Embed::run, arguments), model::told);
    }

    /** Returns the rows of an array of NumPy after a look at its header. */
    private static float[][] rows(Path file, int count) throws IOException {
        ByteBuffer bytes = ByteBuffer.wrap(Files.readAllBytes(file)).order(ByteOrder.LITTLE_ENDIAN);
        int length = bytes.getShort(8);
        assertEquals(0, (10 + length) % 64);
        String header = new String(bytes.array(), 10, length, StandardCharsets.US_ASCII);
        assertTrue(
                header.startsWith("{'descr': '<f4', 'fortran_order': False, 'shape': (" + count + ", 32), }"), header);
        assertTrue(header.endsWith("\n"));
        float[][] rows = new float[count][SmallModel.HIDDEN];
        bytes.position(10 + length);
        for (float[] row : rows) {
            for (int i = 0; i < row.length; i++) {
                row[i] = bytes.getFloat();
            }
        }
        assertEquals(0, bytes.remaining());
        return rows;
    }

    private List<float[][]> residues(List<String> proteins) {
        try (Device device = Device.open();
                Esm2 opened = Esm2Checkpoint.open(device, model.folder(), DType.FLOAT32);
                ProteinEmbeddings embeddings = new ProteinEmbeddings(opened)) {
            return embeddings.residues(proteins);
        }
    }

    private static float[] mean(float[][] residues) {
        float[] mean = new float[SmallModel.HIDDEN];
        for (float[] residue : residues) {
            for (int i = 0; i < mean.length; i++) {
                mean[i] += residue[i] / residues.length;
            }
        }
        return mean;
    }

    @Test
    void meansAreInTheOrderOfTheProteins() throws IOException {
        embed("--out=" + npy, "--long=cut", "--batch-tokens=40");
        List<String> cut = SmallModel.PROTEINS.stream()
                .map(protein -> protein.substring(0, Math.min(MOST, protein.length())))
                .toList();
        List<float[][]> expected = residues(cut);
        float[][] rows = rows(npy, cut.size());
        for (int i = 0; i < rows.length; i++) {
            assertArrayEquals(mean(expected.get(i)), rows[i], TOLERANCE);
        }
        List<String> lines = Files.readAllLines(temporary.resolve("e.npy.jsonl"));
        assertEquals(cut.size() + 2, lines.size());
        assertEquals(
                "{protein=1, id=P1, residues=64, taken=32, windows=1, row=1, rows=1}",
                JSON.std.mapFrom(lines.get(2)).toString());
        assertFalse(Files.exists(temporary.resolve("e.npy.jsonl.part")));
        assertFalse(Files.exists(temporary.resolve("e.npy.rows.part")));
    }

    @Test
    void batchesAreFilledUpToFewSizes() {
        List<int[]> sequences = List.of(new int[] {1, 2, 3}, new int[] {4, 5});
        assertArrayEquals(new int[] {1, 2, 3, 4, 5}, new Batch(sequences, 0, 0).ids);
        assertArrayEquals(new int[] {0, 3, 5, 5, 5}, new Batch(sequences, 0, 4).offsets);
        Batch longer = new Batch(sequences, 12, 4);
        assertArrayEquals(new int[] {1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2}, longer.ids);
        assertArrayEquals(new int[] {0, 3, 5, 8, 11, 12}, longer.offsets);
        assertArrayEquals(new int[] {0, 1, 2}, new Batch(List.of(new int[] {1}, new int[] {2}), 0, 4).offsets);
        int[] means = {1, 26, 27, 40, 410, 500};
        int[] room = {32, 32, 64, 64, 512, 1024};
        assertArrayEquals(room, Arrays.stream(means).map(Batch::room).toArray());
    }

    @Test
    void tellsHowLongItTook() throws IOException {
        embed("--out=" + npy, "--long=cut", "--batch-tokens=40");
        assertTrue(model.told().contains("the first batch took "), model::told);
        List<String> lines = Files.readAllLines(temporary.resolve("e.npy.jsonl"));
        Map<String, Object> totals = JSON.std.mapFrom(lines.getLast());
        double first = (double) totals.get("secondsOfFirstBatch");
        assertTrue(0 < first && first < (double) totals.get("seconds"), totals::toString);
        assertTrue((double) totals.get("secondsOfOpening") > 0, totals::toString);
    }

    /** The states that the head reads are those of a folder that has none. */
    @Test
    void takesAModelWithoutAHead() throws IOException {
        embed("--out=" + npy, "--long=cut");
        Path base = temporary.resolve("base");
        try (Device device = Device.open();
                Esm2Base opened = Esm2Checkpoint.openBase(device, model.folder(), DType.FLOAT32)) {
            Esm2Checkpoint.save(opened, base, SaveConfig.standard());
        }
        Path other = temporary.resolve("base.npy");
        assertEquals(
                0,
                Embed.run(
                        System.out,
                        System.err,
                        "--model=" + base,
                        "--fasta=" + model.fasta(),
                        "--out=" + other,
                        "--long=cut"));
        assertArrayEquals(Files.readAllBytes(npy), Files.readAllBytes(other));
    }

    /** Eight bits have three of the mantissa, so that a product is off by some hundredths, and means point the same way. */
    @ParameterizedTest
    @ValueSource(strings = {"fp8-current", "fp8-block"})
    void productsInEightBits(String recipe) throws IOException {
        embed("--out=" + npy, "--long=cut", "--dtype=bf16", "--recipe=" + recipe);
        Path whole = temporary.resolve("whole.npy");
        embed("--out=" + whole, "--long=cut", "--dtype=bf16");
        assertEquals(
                2,
                model.run(
                        Embed::run, "--fasta=" + model.fasta(), "--out=" + npy, "--dtype=fp32", "--recipe=" + recipe));
        assertTrue(model.told().contains("--dtype: expected bf16 or fp16 with --recipe " + recipe), model::told);
        float[][] rows = rows(npy, SmallModel.PROTEINS.size());
        float[][] expected = rows(whole, rows.length);
        for (int i = 0; i < rows.length; i++) {
            assertNotEquals(Arrays.toString(expected[i]), Arrays.toString(rows[i]));
            double product = 0;
            double square = 0;
            double expectedSquare = 0;
            for (int c = 0; c < SmallModel.HIDDEN; c++) {
                product += (double) rows[i][c] * expected[i][c];
                square += Math.pow(rows[i][c], 2);
                expectedSquare += Math.pow(expected[i][c], 2);
            }
            assertEquals(1, product / Math.sqrt(square * expectedSquare), 0.02);
        }
    }

    /** Windows of 32 residues begin at 0, 16 and 32. */
    @Test
    void overlappingWindowsAreAveraged() throws IOException {
        embed("--out=" + npy, "--long=windows", "--rows=tokens", "--batch-tokens=1");
        String longest = SmallModel.PROTEINS.get(1);
        List<float[][]> windows =
                residues(List.of(longest.substring(0, MOST), longest.substring(16, 48), longest.substring(32)));
        int before = SmallModel.PROTEINS.getFirst().length();
        int all = SmallModel.PROTEINS.stream().mapToInt(String::length).sum();
        float[][] rows = rows(npy, all);
        for (int i = 0; i < longest.length(); i++) {
            float[] expected = new float[SmallModel.HIDDEN];
            int count = 0;
            for (int w = 0; w < 3; w++) {
                int at = i - 16 * w;
                if (at >= 0 && at < MOST) {
                    count++;
                    for (int c = 0; c < expected.length; c++) {
                        expected[c] += windows.get(w)[at][c];
                    }
                }
            }
            for (int c = 0; c < expected.length; c++) {
                expected[c] /= count;
            }
            assertArrayEquals(expected, rows[before + i], TOLERANCE, "residue " + i);
        }
        float[] mean = mean(Arrays.copyOfRange(rows, before, before + longest.length()));
        embed("--out=" + npy, "--long=windows");
        assertArrayEquals(mean, rows(npy, SmallModel.PROTEINS.size())[1], TOLERANCE);
    }

    @Test
    void eachProteinIsATensor() throws IOException {
        Path file = temporary.resolve("e.safetensors");
        embed("--out=" + file, "--long=cut", "--rows=tokens");
        List<float[][]> expected = residues(List.of("ACD"));
        try (SafetensorsFile opened = SafetensorsFile.open(file)) {
            assertEquals(
                    List.of("P0", "P0#2", "P1", "P2", "P3"),
                    opened.entries().keySet().stream().sorted().toList());
            assertArrayEquals(new long[] {3, 32}, opened.entry("P2").sizes());
            float[] numbers = new float[96];
            opened.entry("P2").copyTo(MemorySegment.ofArray(numbers));
            for (int i = 0; i < 96; i++) {
                assertEquals(expected.getFirst()[i / 32][i % 32], numbers[i], TOLERANCE);
            }
        }
        embed("--out=" + file, "--long=cut", "--rows=cls");
        try (SafetensorsFile opened = SafetensorsFile.open(file)) {
            assertArrayEquals(new long[] {5, 32}, opened.entry("cls").sizes());
        }
    }

    /** What a killed command leaves are its two parts, the last line of which may be torn. */
    @Test
    void aKilledCommandGoesOn() throws IOException {
        embed("--out=" + npy, "--long=cut");
        float[][] whole = rows(npy, 5);
        List<String> lines = Files.readAllLines(temporary.resolve("e.npy.jsonl"));
        ByteBuffer left = ByteBuffer.allocate(3 * 32 * Float.BYTES + 20).order(ByteOrder.LITTLE_ENDIAN);
        float[] other = new float[32];
        Arrays.fill(other, 7);
        for (float[] row : List.of(other, other, whole[2])) {
            for (float number : row) {
                left.putFloat(number);
            }
        }
        Files.write(temporary.resolve("e.npy.rows.part"), left.array());
        String index =
                String.join("\n", lines.subList(0, 3)) + "\n" + lines.get(3).substring(0, 15);
        Files.writeString(temporary.resolve("e.npy.jsonl.part"), index);
        Files.delete(npy);
        embed("--out=" + npy, "--long=cut");
        assertTrue(model.told().contains("going on after 2 of 5 proteins"), model::told);
        float[][] rows = rows(npy, 5);
        assertArrayEquals(other, rows[1]);
        for (int i = 2; i < 5; i++) {
            assertArrayEquals(whole[i], rows[i], TOLERANCE);
        }
        List<String> again = new ArrayList<>(Files.readAllLines(temporary.resolve("e.npy.jsonl")));
        assertEquals(lines.subList(0, 6), again.subList(0, 6));
        Files.writeString(temporary.resolve("e.npy.jsonl.part"), index);
        assertEquals(1, model.run(Embed::run, "--fasta=" + model.fasta(), "--out=" + npy, "--long=windows"));
        assertTrue(
                model.told()
                        .contains("e.npy.jsonl.part is of an earlier command with other options, model or proteins;"
                                + " remove it, or name another file"),
                model::told);
    }

    /** Another library reads what is written. */
    @Test
    void parquetHasARowForEachEmbedding() throws IOException {
        for (String rows : List.of("mean", "tokens")) {
            Path file = temporary.resolve(rows + ".parquet");
            embed("--out=" + file, "--long=cut", "--rows=" + rows);
            embed("--out=" + npy, "--long=cut", "--rows=" + rows);
            int count = rows.equals("mean") ? 5 : 22 + MOST + 3 + 31 + 22;
            float[][] expected = rows(npy, count);
            List<String> ids = new ArrayList<>();
            int row = 0;
            try (var reader = ParquetFileReader.open(InputFile.of(file));
                    var read = reader.rowReader()) {
                while (read.hasNext()) {
                    read.next();
                    ids.add(read.getLong("protein")
                            + read.getString("id")
                            + (rows.equals("mean") ? "" : read.getInt("residue")));
                    PqList numbers = read.getList("embedding");
                    for (int i = 0; i < SmallModel.HIDDEN; i++) {
                        assertEquals(expected[row][i], ((Number) numbers.get(i)).floatValue(), rows + " row " + row);
                    }
                    row++;
                }
            }
            assertEquals(count, row);
            assertEquals(rows.equals("mean") ? "0P0" : "0P00", ids.getFirst());
            assertEquals(rows.equals("mean") ? "4P0" : "4P021", ids.getLast());
        }
    }

    @Test
    void severalFilesAreOneAndUnknownLettersAreCounted() throws IOException {
        Path more = Files.createDirectory(temporary.resolve("more"));
        Files.writeString(more.resolve("a.fasta"), ">X\nMJK\n>Y\nACD\n");
        String[] arguments = {
            "--fasta", model.fasta().toString(), more + "/*.fasta", "--out=" + npy, "--long=cut", "--unknown=skip"
        };
        assertEquals(0, model.run(Embed::run, arguments), model::told);
        assertTrue(model.told().contains("1 sequence with 1 unknown letter left out: "), model::told);
        float[][] rows = rows(npy, 6);
        assertArrayEquals(rows[2], rows[5], TOLERANCE);
        List<String> lines = Files.readAllLines(temporary.resolve("e.npy.jsonl"));
        assertEquals("Y", JSON.std.mapFrom(lines.get(6)).get("id"));
        assertEquals(1, JSON.std.mapFrom(lines.getLast()).get("unknownLetters"));
        arguments[5] = "--unknown=unk";
        assertEquals(0, model.run(Embed::run, arguments), model::told);
        rows(npy, 7);
        arguments[5] = "--unknown=refuse";
        assertEquals(1, model.run(Embed::run, arguments), model::told);
        assertTrue(model.told().contains("a.fasta:2: 'J' at column 2"), model::told);
        assertEquals(2, model.run(Embed::run, "--fasta=" + model.fasta() + "=0.5", "--out=" + npy));
        assertTrue(model.told().contains("--fasta: expected a file without a weight"), model::told);
    }

    @Test
    void wrongOptionsAreToldInOneLine() {
        Map<String, String> texts = Map.of(
                "--out=" + npy,
                "--long: expected cut or windows, or a larger --context, for --context 34 has room for 32 residues and"
                        + " 1 of 5 proteins have more, the first P1 with 64; got refuse",
                "--out=e.csv",
                "--out: expected a name that ends with .safetensors, .npy or .parquet, got e.csv",
                "--out=e.npy --rows=max",
                "Invalid value for option '--rows': expected one of mean, cls, tokens, got max",
                "--out=e.npy --context=2",
                "--context: expected at least 3 (<cls>, one residue, <eos>), got 2");
        texts.forEach((options, text) -> {
            String[] arguments = (options + " --fasta=" + model.fasta()).split(" ");
            assertEquals(2, model.run(Embed::run, arguments), options);
            assertEquals(
                    "embed: " + text + " (embed --help lists the options)",
                    model.told().strip());
        });
        assertEquals(1, model.run(Embed::run, "--fasta=" + temporary.resolve("absent"), "--out=" + npy));
        assertEquals(
                "embed: " + temporary.resolve("absent") + ": there is no such file",
                model.told().strip());
    }
}
