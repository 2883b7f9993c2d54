package dev.chagres.models.data;

import java.util.Arrays;
import java.util.Optional;
import java.util.regex.Pattern;

/**
 * A format of sequences that is not FASTA, told by how a file begins: parts of such a file look like residues.
 *
 * <p>Threading: immutable.
 */
enum OtherFormat {
    GENBANK("GenBank", "LOCUS {2}", biopython("genbank")),
    EMBL("EMBL", "ID {3}[^\n]*; (linear|circular);", biopython("embl")),
    UNIPROT("UniProtKB's text format", "ID {3}", biopython("swiss")),
    UNIPROT_XML("XML", "<", biopython("uniprot-xml") + ", if it is UniProtKB's"),
    CLUSTAL("Clustal", "CLUSTAL|MUSCLE \\(", biopython("clustal")),
    STOCKHOLM("Stockholm", "# STOCKHOLM", biopython("stockholm")),
    NEXUS("NEXUS", "(?i)#NEXUS", biopython("nexus")),
    PHYLIP("PHYLIP", "[0-9]+[ \t]+[0-9]+[ \t]*[\r\n]", biopython("phylip-relaxed")),
    PDB("PDB", "(HEADER|TITLE|ATOM|CRYST1) {2}", biopython("pdb-seqres")),
    MMCIF("mmCIF", "data_[0-9A-Za-z]+[ \t]*[\r\n]", biopython("cif-seqres")),
    SAM("SAM", "@(HD|SQ|RG|PG|CO)\t", "by samtools fasta FILE > FILE.fasta"),
    FASTQ("FASTQ", "@", biopython("fastq")),
    MMSEQS("a database of MMseqs2", "[A-Za-z*]++\n\\x00", "by mmseqs convert2fasta DATABASE FILE.fasta"),
    /** Told by a record's header. */
    PIR(
            "PIR (NBRF), whose second line is a title",
            "(P1|F1|DL|DC|RL|RC|N1|N3|XX);",
            "by awk '/^>..;/ {print \">\" substr($0, 5); getline; next} 1' FILE > FILE.fasta");

    /** Bytes from the first on by which a format is told. */
    static final int START = 1 << 12;

    private final String name;
    private final Pattern start;
    private final String conversion;

    OtherFormat(String name, String start, String conversion) {
        this.name = name;
        this.start = Pattern.compile(start);
        this.conversion = conversion;
    }

    private static String biopython(String format) {
        return "by Biopython: SeqIO.convert(\"FILE\", \"" + format + "\", \"FILE.fasta\", \"fasta\")";
    }

    /** Returns the format of a file that begins with {@code text}, which is no header. */
    static Optional<OtherFormat> ofStart(String text) {
        return Arrays.stream(values())
                .filter(format -> format != PIR && format.start.matcher(text).lookingAt())
                .findFirst();
    }

    /** Returns whether a header, without its {@code >}, is one of PIR. */
    static boolean isPir(String header) {
        return PIR.start.matcher(header).lookingAt();
    }

    /** Returns in words that a file looks like this, and what to do. */
    String refusal() {
        return "this looks like " + name + ", not FASTA; convert it " + conversion;
    }
}
