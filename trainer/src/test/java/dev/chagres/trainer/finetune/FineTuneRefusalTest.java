package dev.chagres.trainer.finetune;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.trainer.command.TargetScale;
import java.io.IOException;
import java.nio.file.Files;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** What the command refuses, and what it says then. */
@Tag("L0")
class FineTuneRefusalTest extends FineTuneCalls {
    @Test
    void unknownLettersAreRefusedTakenOrLeftOut() throws IOException {
        String text =
                "label,sequence\na,MKJLVINGKTLKGEITVEA\nb,ACDEFGHIKLMNPQRSTVW\na,MKLVINGKTLKGEITVEAP\nb,AC*EFGHIKLMNPQRSTVW\n";
        Files.writeString(folder.resolve("train.csv"), text);
        Files.writeString(folder.resolve("eval.csv"), text);
        assertEquals(1, tune("classification", "refused"));
        assertTrue(err.contains("expected letters of residues, got J at position 3"), err);
        assertEquals(0, tune("classification", "taken", "--unknown=unk", "--epochs=1"), () -> err);
        assertTrue(out.startsWith("4 sequences of "), out);
        assertEquals(0, tune("classification", "left", "--unknown=skip", "--epochs=1"), () -> err);
        assertTrue(out.startsWith("2 sequences of ") && out.contains("2 with unknown letters left out"), out);
    }

    @Test
    void tellsWhichNumbersAreWrong() throws IOException {
        writeNumbers("eval.csv", 4, 2);
        for (String label : List.of("high", "NaN", "1e300", "Infinity")) {
            Files.writeString(folder.resolve("train.csv"), "sequence,label\nAAA,1\nKKK," + label + "\n");
            assertEquals(1, tune("regression", "refused"));
            assertEquals(
                    "finetune: --train: train.csv: line 3: expected a finite number as the label, got " + label,
                    err.strip().replace(folder + "/", ""));
        }
        Files.writeString(folder.resolve("train.csv"), "sequence,label\nAAA,2\nKKK,2\n");
        assertEquals(1, tune("regression", "refused", "--standardize"));
        assertEquals(
                "finetune: --standardize: expected labels that differ, and whose spread is finite, got a standard"
                        + " deviation of 0.0",
                err.strip());
        Files.writeString(folder.resolve(TargetScale.FILE), "{\"mean\": 2, \"standard_deviation\": 0}");
        assertTrue(String.valueOf(assertThrows(RuntimeException.class, () -> TargetScale.read(folder))
                        .getMessage())
                .endsWith(TargetScale.FILE + ": expected the numbers mean and standard_deviation, above 0"));
        Files.writeString(folder.resolve(TargetScale.FILE), "{");
        assertTrue(String.valueOf(assertThrows(RuntimeException.class, () -> TargetScale.read(folder))
                        .getMessage())
                .endsWith("expected JSON, got something else"));
    }

    private String refusal(String csv, String... further) throws IOException {
        Files.writeString(folder.resolve("train.csv"), csv);
        assertTrue(tune("classification", "refused", further) > 0);
        return err.strip().replace(folder.toString() + "/", "");
    }

    @Test
    void tellsWhatIsWrong() throws IOException {
        writeBoth();
        String good = Files.readString(folder.resolve("train.csv"));
        assertEquals(
                "finetune: --train: train.csv: expected a first line with the columns sequence and label, got a,b",
                refusal("a,b\n1,2\n"));
        assertTrue(
                refusal(">protein\nAAA\n").endsWith(", got >protein; the labels of a FASTA file are --train-labels"),
                err);
        assertEquals(
                "finetune: --train: train.csv: line 2: expected letters of residues, got ! at position 2",
                refusal("sequence,label\nA!A,x\n"));
        assertEquals(
                "finetune: --train: train.csv: line 2: expected 2 columns, got 3",
                refusal("sequence,label\nAAA,x,y\n"));
        assertEquals(
                "finetune: --train: train.csv: line 3: expected a label, got none",
                refusal("sequence,label\nAAA,x\nAAA,\n"));
        assertEquals("finetune: --train: train.csv: expected sequences, got none", refusal("sequence,label\n"));
        assertEquals("finetune: --train: expected two labels or more, got [x]", refusal("sequence,label\nAAA,x\n"));
        assertTrue(refusal("sequence,label\nAAA,a\nKKK,b\n")
                .startsWith("finetune: --eval: eval.csv: line 2: expected one of the labels a, b, got "));
        assertEquals(
                "finetune: --train: train.csv: expected different columns, got label,sequence,label",
                refusal("label,sequence,label\na,AAA,b\n"));
        assertEquals(
                "finetune: --learning-rate: expected a finite number of at least 0, got NaN (finetune --help lists the"
                        + " options)",
                refusal(good, "--learning-rate", "NaN"));
        Files.write(folder.resolve("train.csv"), new byte[] {(byte) 0xff, (byte) 0xfe});
        assertEquals(1, tune("classification", "refused"));
        assertEquals(
                "finetune: --train: train.csv cannot be read: expected text in UTF-8, got other bytes",
                err.strip().replace(folder + "/", ""));
        Files.delete(folder.resolve("train.csv"));
        assertEquals(1, tune("classification", "refused"));
        assertEquals(
                "finetune: --train: train.csv cannot be read: there is no file train.csv",
                err.strip().replace(folder + "/", ""));
        assertEquals(
                "finetune: --frozen: expected none beside --lora, which freezes all but the head (finetune --help"
                        + " lists the options)",
                refusal(good, "--lora", "r=2", "--frozen", "trunk"));
        assertEquals(
                "finetune: --frozen: expected trunk, or last-n=2 or another number, got head (finetune --help lists"
                        + " the options)",
                refusal(good, "--frozen", "head"));
        assertEquals(
                "finetune: --frozen: expected last-n of at most 2 layers, got 9 (finetune --help lists the options)",
                refusal(good, "--frozen", "last-n=9"));
        assertTrue(refusal(good, "--lora", "r=2,target=q").contains("target: expected some of query, key,"), err);
        assertTrue(
                refusal(good, "--lora", "rank=2").contains("expected r=, alpha=, dropout=, scaling= or target="), err);
        assertTrue(
                refusal(good, "--metric", "auc")
                        .contains("expected one of loss, accuracy, micro-f1, macro-f1, matthews"),
                err);
        assertEquals(
                "finetune: --metric: expected loss, accuracy, macro-f1, matthews with --task classification, got mse"
                        + " (finetune --help lists the options)",
                refusal(good, "--metric", "mse"));
        assertEquals(
                "finetune: --standardize: expected --task regression, got classification (finetune --help lists the"
                        + " options)",
                refusal(good, "--standardize"));
    }
}
