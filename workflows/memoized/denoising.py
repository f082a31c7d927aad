"""Denoising of photographs by mixtures of Gaussians for patches, whose number of clusters is learned.

Expected patch log likelihood (Zoran & Weiss, ICCV 2011; epll.py) on the 68 pictures of BSD68, which the mixtures were
not fitted to, with Gaussian noise of standard deviation 15, 25 and 50, seeded by the picture's position. The mixtures
are runs of ``image_patches.py``; the published figures are of this method with 200 clusters fitted by expectation
maximisation. Nothing was tuned on these pictures: the schedule of beta is the paper's.

Written to --out: results, one file per picture, which are not repeated; table.csv, table.txt, pictures.png.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import numpy as np
from epll import CANDIDATES, Prior, add_noise, denoise, psnr
from image_patches import run_path
from matplotlib import pyplot as plt
from pictures import Noisy, drawn_picture, store_patches, test_pictures
from shared import Fields, Kept, options, write_table

import dpdist
from dpdist.models.families import ZeroMeanGaussian

#: Mean PSNR over BSD68 by noise, as published.
PUBLISHED = {15.0: 31.21, 25.0: 28.68, 50.0: 25.67}
RUNS = ("one", "prior of clusters", "without moves")
#: By how much comparing a few components only may change the small run's PSNR, and what denoising must bring, in dB.
NEAR, GAIN = 0.02, 5.0


def prior_of(model: dpdist.DPMixture) -> Prior:
    """The mixture of a fitted model, without clusters not yet seen."""
    return Prior(model.weights_ / model.weights_.sum(), model.covariances_)


def judge(prior: Prior, noisy: Noisy, sigma: float, seed: int, candidates: int | None) -> Fields:
    """PSNR of one picture, noisy and denoised, and the seconds of the processor that it took."""
    given = add_noise(noisy.picture, sigma, seed)
    began = time.process_time()
    found = denoise(prior, given, sigma, candidates)
    seconds = time.process_time() - began
    return {"noisy": psnr(given, noisy.picture), "psnr": psnr(found, noisy.picture), "seconds": round(seconds, 2)}


def table(results: list[Fields]) -> list[list[object]]:
    """A line a mixture and noise."""
    lines: list[list[object]] = []
    for name, clusters, sigma in dict.fromkeys((each["run"], each["clusters"], each["sigma"]) for each in results):
        mine = [each for each in results if (each["run"], each["clusters"], each["sigma"]) == (name, clusters, sigma)]
        noisy, found, seconds = (np.mean([each[field] for each in mine]) for field in ("noisy", "psnr", "seconds"))
        published = PUBLISHED[sigma]
        numbers = [f"{noisy:.3f}", f"{found:.3f}", f"{published:.2f}", f"{found - published:+.3f}", f"{seconds:.1f}"]
        lines.append([name, clusters, f"{sigma:g}", len(mine), *numbers])
    return lines


def draw_pictures(prior: Prior, noisy: Noisy, path: Path, sigma: float = 25.0) -> None:
    """A picture, with noise, and without it again."""
    given = add_noise(noisy.picture, sigma, 0)
    found = denoise(prior, given, sigma)
    figure, axes = plt.subplots(1, 3, figsize=(15, 4), layout="constrained")
    for axis, name, picture in zip(axes, ("picture", "noisy", "denoised"), (noisy.picture, given, found), strict=True):
        axis.imshow(picture, cmap="gray", vmin=0, vmax=255)
        axis.set_title(name if picture is noisy.picture else f"{name}, {psnr(picture, noisy.picture):.2f} dB")
        axis.axis("off")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def check_small(out: Path) -> None:
    """Drawn pictures lose their noise, as much by a few components as by all of them."""
    rows = store_patches([drawn_picture(seed) for seed in range(4)], out / "patches.zarr")
    prior = prior_of(dpdist.DPMixture(ZeroMeanGaussian(), compute_dtype="float32", max_laps=7).fit(rows))
    few, count = max(2, len(prior.weights) // 2), len(prior.weights)
    noisy = Noisy("drawn", drawn_picture(100).astype(float))
    results, lines = [], []
    for name, candidates in (("all", None), ("few", few)):
        result = judge(prior, noisy, 25.0, 0, candidates)
        results.append(result)
        lines.append([name, candidates or count, "25", 1, f"{result['noisy']:.3f}", f"{result['psnr']:.3f}"])
    write_table(["compared", "clusters", "noise", "pictures", "noisy", "denoised"], lines, out)
    draw_pictures(prior, noisy, out / "pictures.png")
    every, fewer = (result["psnr"] for result in results)
    assert every > results[0]["noisy"] + GAIN, f"denoising brought {every - results[0]['noisy']:.2f} dB"
    assert abs(every - fewer) < NEAR, f"all components {every:.3f} dB, {few} of {count} {fewer:.3f} dB"


def main() -> None:
    """Run the comparison."""
    parser = options(__doc__, "denoising")
    patches = Path("build") / "workflows" / "image_patches"
    parser.add_argument("--patches", type=Path, default=patches, help="folder of the runs of image_patches.py")
    parser.add_argument("--runs", nargs="+", default=RUNS, help="names of these runs")
    parser.add_argument("--sigmas", nargs="+", type=float, choices=list(PUBLISHED), default=list(PUBLISHED))
    parser.add_argument("--pictures", type=int, help="how many of the 68; all by default")
    parser.add_argument("--all-components", action="store_true", help="compare all of them at every beta")
    given = parser.parse_args()
    kept = Kept(given.out)
    if given.small:
        return check_small(given.out)
    pictures, candidates = test_pictures(given.data, given.pictures), None if given.all_components else CANDIDATES
    priors = {name: dpdist.load(run_path(given.patches, name)) for name in given.runs}
    results = []
    for sigma in given.sigmas:
        for name, model in priors.items():
            prior, told = prior_of(model), {"run": name, "clusters": model.n_components_, "laps": model.n_iter_}
            for seed, noisy in enumerate(pictures):
                key = {**told, "elbo": model.elbo_, "candidates": candidates, "sigma": sigma, "picture": noisy.name}
                results.append(kept.once(key, partial(judge, prior, noisy, sigma, seed, candidates)))
    columns = ["run", "clusters", "noise", "pictures", "noisy", "PSNR", "EPLL-GMM", "difference", "seconds a picture"]
    write_table(columns, table(results), given.out)
    draw_pictures(prior_of(priors[given.runs[0]]), pictures[0], given.out / "pictures.png")
    return None


if __name__ == "__main__":
    main()
