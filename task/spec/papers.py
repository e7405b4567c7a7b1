"""The papers that the catalogue names, by their number at arXiv."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Paper:
    """Where an algorithm comes from."""

    authors: str
    year: int
    title: str
    arxiv: str
    where: str  # algorithm or equation number in the paper


# Number, year and authors; below them the title.
_PAPERS = """
2111.04263 2021 Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama
    Federated Learning Based on Dynamic Regularization
1912.00818 2019 Arivazhagan, Aggarwal, Singh, Choudhary
    Federated Learning with Personalization Layers
1802.04434 2018 Bernstein, Wang, Azizzadenesheli, Anandkumar
    signSGD: Compressed Optimisation for Non-Convex Problems
1703.02757 2017 Blanchard, El Mhamdi, Guerraoui, Stainer
    Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent
1709.05929 2018 Chang, Balachandar, Lam, Yi, Brown, Beers, Rosen, Rubin, Kalpathy-Cramer
    Distributed Deep Learning Networks among Institutions for Medical Imaging
2010.01243 2020 Cho, Wang, Joshi
    Client Selection in Federated Learning: Convergence Analysis and Power-of-Choice Selection Strategies
2102.07089 2021 Collins, Hassani, Mokhtari, Shakkottai
    Exploiting Shared Representations for Personalized Federated Learning
2006.08848 2020 Dinh, Tran, Nguyen
    Personalized Federated Learning with Moreau Envelopes
1802.07927 2018 El Mhamdi, Guerraoui, Rouault
    The Hidden Vulnerability of Distributed Learning in Byzantium
2002.07948 2020 Fallah, Mokhtari, Ozdaglar
    Personalized Federated Learning: A Meta-Learning Approach
2203.11751 2022 Gao, Fu, Li, Chen, Xu, Xu
    FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and Correction
1909.06335 2019 Hsu, Qi, Brown
    Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification
2007.03797 2021 Huang, Chu, Zhou, Wang, Liu, Pei, Zhang
    Personalized Cross-Silo Federated Learning on Non-IID Data
2301.09604 2023 Jhunjhunwala, Wang, Joshi
    FedExP: Speeding Up Federated Averaging via Extrapolation
1812.07108 2019 Ji, Pan, Long, Li, Jiang, Huang
    Learning Private Neural Language Modeling with Attentive Aggregation
1910.06378 2020 Karimireddy, Kale, Mohri, Reddi, Stich, Suresh
    SCAFFOLD: Stochastic Controlled Averaging for Federated Learning
1610.02527 2016 Konečný, McMahan, Ramage, Richtárik
    Federated Optimization: Distributed Machine Learning for On-Device Intelligence
2010.06081 2021 Lai, Zhu, Madhyastha, Chowdhury
    Oort: Efficient Federated Learning via Guided Participant Selection
1612.01474 2017 Lakshminarayanan, Pritzel, Blundell
    Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles
1705.09056 2017 Lian, Zhang, Zhang, Hsieh, Zhang, Liu
    Can Decentralized Algorithms Outperform Centralized Algorithms? A Case Study for Decentralized Parallel SGD
1905.06641 2020 Liu, Zhang, Song, Letaief
    Client-Edge-Cloud Hierarchical Federated Learning
1910.03581 2019 Li, Wang
    FedMD: Heterogenous Federated Learning via Model Distillation
2103.16257 2021 Li, He, Song
    Model-Contrastive Federated Learning
2012.04221 2021 Li, Hu, Beirami, Smith
    Ditto: Fair and Robust Federated Learning Through Personalization
2102.07623 2021 Li, Jiang, Zhang, Kamp, Dou
    FedBN: Federated Learning on Non-IID Features via Local Batch Normalization
1812.06127 2020 Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith
    Federated Optimization in Heterogeneous Networks
1905.10497 2020 Li, Sanjabi, Beirami, Smith
    Fair Resource Allocation in Federated Learning
2110.08394 2022 Luo, Wu
    Adapt to Adaptation: Learning Personalization for Cross-Silo Federated Learning
1602.05629 2017 McMahan, Moore, Ramage, Hampson, Agüera y Arcas
    Communication-Efficient Learning of Deep Networks from Decentralized Data
1804.08333 2019 Nishio, Yonetani
    Client Selection for Federated Learning with Heterogeneous Resources in Mobile Edge
1912.13445 2022 Pillutla, Kakade, Harchaoui
    Robust Aggregation for Federated Learning
2003.00295 2021 Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan
    Adaptive Federated Optimization
1705.10467 2017 Smith, Chiang, Sanjabi, Talwalkar
    Federated Multi-Task Learning
2105.00243 2022 Tan, Long, Liu, Zhou, Lu, Jiang, Zhang
    FedProto: Federated Prototype Learning across Heterogeneous Clients
2309.16825 2024 Tavakoli, Emerson, Ayromlou, Jewell, Krishnan, Zhang, Verma, Razak
    A Comprehensive View of Personalized Federated Learning on Heterogeneous Clinical Datasets
1812.00564 2018 Vepakomma, Gupta, Swedish, Raskar
    Split Learning for Health: Distributed Deep Learning without Sharing Raw Patient Data
2007.07481 2020 Wang, Liu, Liang, Joshi, Poor
    Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization
1910.10252 2019 Wang, Mathews, Kiddon, Eichner, Beaufays, Ramage
    Federated Evaluation of On-device Personalization
1804.05271 2019 Wang, Tuor, Salonidis, Leung, Makaya, He, Chan
    Adaptive Federated Learning in Resource Constrained Edge Computing Systems
1911.00222 2020 Wei, Li, Ding, Ma, Yang, Farokhi, Jin, Quek, Poor
    Federated Learning with Differential Privacy: Algorithms and Performance Analysis
1803.01498 2018 Yin, Chen, Ramchandran, Bartlett
    Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates
2212.01197 2023 Zhang, Hua, Wang, Song, Xue, Ma, Guan
    FedALA: Adaptive Local Aggregation for Personalized Federated Learning
2012.08565 2021 Zhang, Sapra, Fidler, Yeung, Alvarez
    Personalized Federated Learning with First Order Model Optimization
"""  # noqa: E501 - a title


_LINES = _PAPERS.strip().splitlines()
_HEADS = (line.split(" ", 2) for line in _LINES[::2])
_PAIRS = zip(_HEADS, _LINES[1::2], strict=True)
_KNOWN = {number: (who, int(year), title.strip()) for (number, year, who), title in _PAIRS}


def paper(arxiv: str, where: str = "Algorithm 1") -> Paper:
    """Return a paper by its number; `where` in it is the algorithm."""
    return Paper(*_KNOWN[arxiv], arxiv, where)
