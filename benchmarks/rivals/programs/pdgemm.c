/* ScaLAPACK's pdgemm: C = A^T B, C gathered on rank 0.
 *
 *     mpicc -O2 pdgemm.c -o pdgemm -lscalapack-openmpi -lopenblas
 *     mpirun -n 4 ./pdgemm A.raw B.raw C.raw s r t block folder stop
 *
 * Files hold float64 in row-major order behind `offset` bytes (.npy); a row-major A (s x r) is a column-major A^T (r x s), so
 * C^T = B^T A is computed on column-major matrices and written as row-major C. Every rank maps the files and takes its
 * own blocks of the cyclic distribution; pdgemr2d gathers C.
 */
#include <fcntl.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

extern void Cblacs_get(int, int, int *);
extern void Cblacs_gridinit(int *, const char *, int, int);
extern void Cblacs_gridinfo(int, int *, int *, int *, int *);
extern void Cpdgemr2d(int, int, double *, int, int, int *, double *, int, int, int *, int);
extern int numroc_(int *, int *, int *, int *, int *);
extern void descinit_(int *, int *, int *, int *, int *, int *, int *, int *, int *, int *);
extern void pdgemm_(const char *, const char *, int *, int *, int *, double *, double *, int *, int *, int *, double *,
                    int *, int *, int *, double *, double *, int *, int *, int *);

static int zero = 0, one = 1;

static const double *map(const char *path, size_t count) {
    struct stat info;
    int file = open(path, O_RDONLY);
    if (file < 0 || fstat(file, &info)) { perror(path); MPI_Abort(MPI_COMM_WORLD, 66); }
    char *start = mmap(NULL, info.st_size, PROT_READ, MAP_SHARED, file, 0);
    if (start == MAP_FAILED) { perror(path); MPI_Abort(MPI_COMM_WORLD, 66); }
    return (const double *)(start + info.st_size - count * sizeof(double));
}

/* This rank's blocks of the column-major (rows x cols) matrix `whole`, cyclic with blocks of nb. */
static double *take(const double *whole, int rows, int cols, int nb, int pr, int pc, int myr, int myc, int *desc, int ctx) {
    int info, lr = numroc_(&rows, &nb, &myr, &zero, &pr), lc = numroc_(&cols, &nb, &myc, &zero, &pc);
    int lld = lr > 1 ? lr : 1;
    double *local = calloc((size_t)lld * (lc > 1 ? lc : 1), sizeof(double));
    descinit_(desc, &rows, &cols, &nb, &nb, &zero, &zero, &ctx, &lld, &info);
    if (!local || info) MPI_Abort(MPI_COMM_WORLD, 70);
    for (int c = 0; whole && c < lc; c++) {
        long global_c = ((long)(c / nb) * pc + myc) * nb + c % nb;
        for (int r = 0; r < lr; r += nb) {
            long global_r = ((long)(r / nb) * pr + myr) * nb;
            int run = lr - r < nb ? lr - r : nb;
            memcpy(local + (size_t)c * lld + r, whole + global_c * rows + global_r, run * sizeof(double));
        }
    }
    return local;
}

static void begin(const char *folder, const char *stop, int rank) {
    char path[4096], number[16];
    snprintf(path, sizeof path, "%s/worker-%d", folder, rank);
    FILE *file = fopen(path, "w");
    if (file) { fprintf(file, "%d", (int)getpid()); fclose(file); }
    snprintf(number, sizeof number, ",%d,", rank);
    if (strstr(stop, number)) raise(SIGSTOP);
}

int main(int argc, char **argv) {
    int rank, size, ctx, all, pr, pc, myr, myc;
    if (argc != 10) return 64;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int s = atoi(argv[4]), r = atoi(argv[5]), t = atoi(argv[6]), nb = atoi(argv[7]);
    for (pr = 1; (pr + 1) * (pr + 1) <= size; pr++) {}
    while (size % pr) pr--;
    pc = size / pr;
    Cblacs_get(-1, 0, &ctx);
    all = ctx;
    Cblacs_gridinit(&ctx, "Row", pr, pc);
    Cblacs_gridinfo(ctx, &pr, &pc, &myr, &myc);
    Cblacs_gridinit(&all, "Row", 1, 1);
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    begin(argv[8], argv[9], rank);
    int da[9], db[9], dc[9], dwhole[9] = {1, -1};
    double *a = take(map(argv[1], (size_t)s * r), r, s, nb, pr, pc, myr, myc, da, ctx);
    double *b = take(map(argv[2], (size_t)s * t), t, s, nb, pr, pc, myr, myc, db, ctx);
    double *c = take(NULL, t, r, nb, pr, pc, myr, myc, dc, ctx), *whole = NULL, plus = 1.0, none = 0.0;
    pdgemm_("N", "T", &t, &r, &s, &plus, b, &one, &one, db, a, &one, &one, da, &none, c, &one, &one, dc);
    if (rank == 0) whole = take(NULL, t, r, t > r ? t : r, 1, 1, 0, 0, dwhole, all);
    Cpdgemr2d(t, r, c, 1, 1, dc, whole, 1, 1, dwhole, ctx);
    if (rank == 0) {
        double seconds = MPI_Wtime() - start;
        FILE *out = fopen(argv[3], "wb");
        if (!out || fwrite(whole, sizeof(double), (size_t)r * t, out) != (size_t)r * t || fclose(out)) return 73;
        char path[4096];
        snprintf(path, sizeof path, "%s/times.json", argv[8]);
        FILE *times = fopen(path, "w");
        if (!times) return 73;
        fprintf(times, "{\"seconds\": %.6f}", seconds);
        fclose(times);
    }
    MPI_Finalize();
    return 0;
}
